# Sends raw HTTP/2 requests, each on its own connection, and checks what the origin made of them. The origin answers with what it
# has read, ["METHOD", "TARGET", "BODY"]. Prints what the origin must have read, one request a line. The test puts a definition of
# `connect()` before this.
import json, struct

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
HIDDEN = b'GET /hidden HTTP/1.1\r\nHost: site\r\n\r\n'

def frame(kind, flags, payload, stream=1):
    return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload

def block(fields):
    """Literal fields of HPACK, not indexed."""
    return b''.join(b'\0' + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)

def head(*more, method=b'POST', path=b'/one', scheme=b'https', authority=b'site'):
    pseudo = [(b':method', method), (b':path', path), (b':scheme', scheme), (b':authority', authority)]
    return [(name, value) for name, value in pseudo if value is not None] + list(more)

def request(fields, *bodies, trailers=None):
    """A HEADERS frame, DATA frames, and trailers; the last one ends the stream."""
    frames = [(HEADERS, END_HEADERS, block(fields))] + [(DATA, 0, body) for body in bodies]
    if trailers is not None: frames.append((HEADERS, END_HEADERS, block(trailers)))
    kind, flags, payload = frames[-1]
    frames[-1] = kind, flags | END_STREAM, payload
    return b''.join(frame(*one) for one in frames)

def length(text): return (b'content-length', text)

# Each must be refused: by a status, a reset of its stream, or the end of the connection.
REFUSED = [
    # Bytes that end a line or a field for an origin of HTTP/1.
    *[request(head((b'x', b'y' + bad + b'z'))) for bad in [b'\r\n' + HIDDEN, b'\r\nhost: other', b'\n', b'\r', b'\0', b'\x0b', b'\x7f']],
    *[request(head((name, b'y'))) for name in [b'a\r\nb', b'a b', b'a:', b':a', b'', b'A', b'a\0', b'a\x7f', b'\xe4', b'a: b\r\nc', b'transfer-encoding: chunked\r\na']],
    *[request(head(path=path)) for path in [b'', b'one', b'/one HTTP/1.1\r\nhost: x\r\n\r\n' + HIDDEN, b'/a b', b'/a\r\nb', b'/a\tb', b'/\0', b'/a#b', b'/\xe4', b'/\x7f',
        b'*', b'http://other/one', b'//other@', b'\\one'] if path != b'//other@'],
    *[request(head(method=method)) for method in [b'', b'GET /hidden HTTP/1.1\r\nhost: x\r\n\r\nGET', b'GET ', b' GET', b'G(T', b'CONNECT', b'connect', b'GET\r\n', b'\xe4', b'G\0T']],
    *[request(head(authority=host)) for host in [b'', b'a b', b'user@site', b'site\r\nx: y', b'site/x', b'site?x', b'site,other', b'site:x', b'[::1', b'a\0']],
    *[request(head(scheme=scheme)) for scheme in [b'', b'ftp', b'http://site/', b'https\r\nx: y', b'h ttp']],
    # Fields that frame a message of HTTP/1 or belong to its connection.
    *[request(head((name, value)), b'0\r\n\r\n' + HIDDEN) for name, value in [
        (b'transfer-encoding', b'chunked'), (b'transfer-encoding', b'identity'), (b'transfer-encoding', b''), (b'connection', b'close'), (b'connection', b'x'),
        (b'keep-alive', b'x'), (b'proxy-connection', b'x'), (b'upgrade', b'h2c'), (b'upgrade', b'websocket')]],
    # Lengths that are not the data's.
    *[request(head(length(text)), *bodies) for text, bodies in [
        (b'0', [HIDDEN]), (b'4', [b'hello']), (b'6', [b'hello']), (b'5', []), (b'5', [b'hel', b'lo!']), (b'+5', [b'hello']), (b'-5', [b'hello']),
        (b'5, 5', [b'hello']), (b'5;', [b'hello']), (b'0x5', [b'hello']), (b'', [b'hello']), (b'5 5', [b'hello']), (b'9223372036854775808', [b'hello']),
        (b'18446744073709551621', [b'hello'])]],
    request(head(length(b'5'), length(b'6')), b'hello'),
    request(head(length(b'5'), length(b'5')), b'hello'),
    request(head(length(b'5')), b'hello!', trailers=[(b'x', b'y')]),
    request(head(length(b'6')), b'hello', trailers=[(b'x', b'y')]),
    # Pseudo-fields: missing, twice, unknown, of responses, behind others.
    *[request(head(**{missing: None})) for missing in ['method', 'path', 'scheme']],
    *[request(head((b'x', b'y'), again)) for again in [(b':path', b'/two'), (b':authority', b'other')]],
    *[request(head(again)) for again in [(b':path', b'/two'), (b':path', b'/one'), (b':method', b'GET'), (b':authority', b'other'), (b':scheme', b'http'),
        (b':status', b'200'), (b':other', b'x'), (b':protocol', b'websocket')]],
    # Two hosts.
    request(head((b'host', b'other'))), request(head((b'host', b'site'), (b'host', b'site'))), request(head((b'host', b'site'), (b'host', b'other'))),
    request(head((b'host', b''), authority=None)), request(head(authority=None)), request(head((b'host', b'a b'), authority=None)),
    # Trailers.
    *[request(head(), b'hello', trailers=[one]) for one in [(b':path', b'/two'), (b'x', b'y\r\n' + HIDDEN), (b'X', b'y'), (b'x y', b'z'), (b'connection', b'close'), (b'transfer-encoding', b'chunked')]],
    frame(HEADERS, END_HEADERS, block(head())) + frame(DATA, 0, b'hello') + frame(HEADERS, END_HEADERS, block([(b'x', b'y')])) + frame(DATA, END_STREAM, HIDDEN),
    # Padding that is longer than its frame, and a block that is none.
    frame(HEADERS, END_HEADERS | PADDED | END_STREAM, b'\xff' + block(head())),
    frame(HEADERS, END_HEADERS | END_STREAM, block(head()) + b'\xff\xff\xff\xff\xff\xff'),
    frame(HEADERS, END_HEADERS, block(head())) + frame(DATA, PADDED | END_STREAM, b'\xffhello'),
]

# Odd but unambiguous: the origin must read exactly these requests.
READ = [
    (request(head()), ('POST', '/one', '')),
    (request(head(), HIDDEN), ('POST', '/one', HIDDEN.decode())),
    (request(head(), b'0\r\n\r\n', HIDDEN), ('POST', '/one', '0\r\n\r\n' + HIDDEN.decode())),
    (request(head(length(b'5')), b'hello'), ('POST', '/one', 'hello')),
    (request(head(length(b'005')), b'hel', b'', b'lo'), ('POST', '/one', 'hello')),
    (request(head(length(b'0'))), ('POST', '/one', '')),
    (request(head(length(b'0')), b''), ('POST', '/one', '')),
    (request(head(method=b'GET'), b'hello'), ('GET', '/one', 'hello')),
    (request(head(), b'hello', trailers=[(b'x', b'y')]), ('POST', '/one', 'hello')),
    (request(head(length(b'5')), b'hello', trailers=[length(b'50'), (b'host', b'x')]), ('POST', '/one', 'hello')),
    (request(head((b'x-content-length', b'5'), (b'content_length', b'5'), (b'transfer_encoding', b'chunked'))), ('POST', '/one', '')),
    (request(head((b'x', b'\x80\xff\t'))), ('POST', '/one', '')),
    (request(head((b'x', b' y\t '), (b'cookie', b' a=b '), (b'cookie', b'c=d ')), b'hello', trailers=[(b'x', b' y ')]), ('POST', '/one', 'hello')),
    (request(head((b'te', b'trailers'))), ('POST', '/one', '')),
    (request(head((b'cookie', b'a=b'), (b'cookie', b'c=d'))), ('POST', '/one', '')),
    (request(head((b'host', b'site'))), ('POST', '/one', '')),
    (request(head((b'host', b'site'), authority=None)), ('POST', '/one', '')),
    (request(head(path=b'/one?a=b%0d%0ahost:%20x')), ('POST', '/one?a=b%0d%0ahost:%20x', '')),
    (request(head(path=b'//other/one')), ('POST', '//other/one', '')),
    (frame(HEADERS, END_HEADERS | PADDED, b'\x03' + block(head()) + bytes(3)) + frame(DATA, PADDED | END_STREAM, b'\x02hello\0\0'), ('POST', '/one', 'hello')),
    (frame(HEADERS, 0, block(head())[:9]) + frame(9, END_HEADERS, block(head())[9:]) + frame(DATA, END_STREAM, b'hello'), ('POST', '/one', 'hello')),
]

def answer(raw):
    """The first byte of the response's head (an indexed status) and its body; None if the request was reset."""
    connection = connect('h2')
    connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(SETTINGS, 0, b'', 0) + raw)
    data, status, body = b'', None, b''
    def exactly(size):
        nonlocal data
        while len(data) < size:
            piece = connection.recv(65536)
            if not piece: raise EOFError
            data += piece
        taken, data = data[:size], data[size:]
        return taken
    try:
        while True:
            first = exactly(9)
            size, kind, flags, stream = int.from_bytes(first[:3], 'big'), first[3], first[4], int.from_bytes(first[5:], 'big')
            payload = exactly(size)
            if kind == SETTINGS and not flags & ACK: connection.sendall(frame(SETTINGS, ACK, b'', 0))
            if kind == GOAWAY or kind == RST_STREAM: return None
            # The first one begins with a size of the dynamic table, 0.
            if kind == HEADERS: status = payload[1] if payload[0] == 0x20 else payload[0]
            if kind == DATA: body += payload
            if kind in (HEADERS, DATA) and flags & END_STREAM: return status, body
    except (EOFError, ConnectionResetError, ssl.SSLError): return None
    finally: connection.close()

OK, CLIENTS_FAULT = 0x88, (0x8c, 0x48) # :status 200; :status 400, and one that has no index of its own
for raw in REFUSED:
    got = answer(raw)
    assert got is None or got[0] in CLIENTS_FAULT, (raw, got)
for raw, expected in READ:
    got = answer(raw)
    assert got is not None and got[0] == OK and json.loads(got[1]) == list(expected), (raw, got, expected)
    print(json.dumps(expected, separators=(',', ':')))
assert len(REFUSED) >= 80
