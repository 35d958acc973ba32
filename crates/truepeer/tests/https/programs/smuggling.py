# Sends raw requests, and checks what the origin made of them. The origin answers each request with what it has read,
# ["METHOD", "TARGET", "BODY"], in a response with X-Origin. The test puts a definition of `connect()` before this.
import json, random, sys

POST = b'POST /one HTTP/1.1\r\nHost: site\r\n'
GET = b'GET /two HTTP/1.1\r\nHost: site\r\n'
NEXT = b'GET /hidden HTTP/1.1\r\nHost: site\r\n\r\n'
CHUNKED = POST + b'Transfer-Encoding: chunked\r\n\r\n'
END = b'0\r\n\r\n'

# Each must be refused. Nothing of it may reach the origin.
REFUSED = [
    # Two lengths, or one that is not a number.
    *[POST + b'Content-Length: ' + value + b'\r\n\r\nhello' + NEXT for value in [
        b'5\r\nContent-Length: 6', b'5\r\nContent-Length: 5', b'5, 5', b'5,6', b'+5', b'-5', b'5 5', b'0x5', b'5.0',
        b'5e0', b'5;', b'"5"', b'', b'\x0b5', b'5\x0c', b'99999999999999999999', b'9223372036854775808',
        b'18446744073709551621', b'5\r\ncontent-length: 5', b'\xd9\xa5', b'5_0', b'5\r\nX: y\r\nCONTENT-LENGTH: 0',
    ]],
    # Content-Length together with Transfer-Encoding.
    POST + b'Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n' + END + NEXT,
    POST + b'Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n' + END + NEXT,
    POST + b'Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello' + NEXT,
    POST + b'Transfer-Encoding:\r\nContent-Length: 5\r\n\r\nhello' + NEXT,
    POST + b'Transfer-Encoding: x\r\nContent-Length: 0\r\n\r\n' + NEXT,
    # Transfer codings that are not "chunked" alone.
    *[POST + b'Transfer-Encoding: ' + value + b'\r\n\r\n' + END + NEXT for value in [
        b'xchunked', b'chunkedx', b'chunked, identity', b'identity, chunked', b'gzip, chunked', b'chunked, chunked',
        b'chunked,', b',chunked', b'chunked;q=1', b'"chunked"', b"'chunked'", b'\x0bchunked', b'chunked\x0b', b'\x0cchunked',
        b'identity', b'', b'chunked\r\nTransfer-Encoding: identity', b'identity\r\nTransfer-Encoding: chunked',
        b'chunked\r\nTransfer-Encoding: chunked', b'chun\x00ked', b'chunked\x00', b'\xa0chunked', b'\x85chunked', b'cow',
        b'chunked\x7f', b'\xef\xbb\xbfchunked',
    ]],
    # Field lines that some parsers trim, join or split.
    *[POST + field + b'\r\n\r\n' + END + NEXT for field in [
        b'Transfer-Encoding : chunked', b'Transfer-Encoding\t: chunked', b' Transfer-Encoding: chunked',
        b'\tTransfer-Encoding: chunked', b'X: y\r\n Transfer-Encoding: chunked', b'X: y\r\n\tz',
        b'X: y\nTransfer-Encoding: chunked', b'X: y\rTransfer-Encoding: chunked', b'X: y\r\r\nTransfer-Encoding: chunked',
        b'Transfer-Encoding:\r\n chunked', b'Transfer-Encoding:\n chunked', b'Transfer\x00-Encoding: chunked',
        b'\x00Transfer-Encoding: chunked', b'Transfer-Encoding\x0b: chunked', b'Transfer Encoding: chunked',
        b'X: \x00', b'X: a\x00b', b'X: \x0b', b'X: \x08', b': x', b'X', b'X y', b'(X): y', b'X[: y', b'X\xe4: y', b'"X": y',
        b'Transfer-Encoding=chunked', b'Content-Length : 0', b'Content-Length\x00: 0',
    ]],
    # Line ends.
    POST.replace(b'\r\n', b'\n') + b'\n' + NEXT,
    POST[:-2] + b'\n\r\n' + NEXT,
    POST + b'X: y\n\n' + NEXT,
    POST + b'X: y\r\n\n' + NEXT,
    POST + b'X: y\n\r\n' + NEXT,
    POST + b'X: y\r\n\r' + NEXT,
    b'\n' + POST + b'\r\n',
    b'\r\n\r\n\r\n' + POST + b'\r\n',
    b'\r' + POST + b'\r\n',
    b' ' + POST + b'\r\n',
    # Hosts.
    *[b'GET /one HTTP/1.1\r\n' + hosts + b'\r\n' + NEXT for hosts in [
        b'', b'Host: site\r\nHost: site\r\n', b'Host: site\r\nHost: other\r\n', b'Host:\r\n', b'Host: a b\r\n', b'Host: user@site\r\n',
        b'Host: site, other\r\n', b'Host: site/x\r\n', b'Host: site?x\r\n', b'Host: site:x\r\n', b'Host: [::1\r\n', b'Host: a\x00b\r\n',
        b'Host : site\r\n', b' Host: site\r\n', b'Host: site\r\n other\r\n', b'Host: http://site\r\n', b'Host: site:443:80\r\n',
    ]],
    # Request lines. An absolute target must agree with Host.
    *[line + b'\r\nHost: site\r\n\r\n' + NEXT for line in [
        b'GET http://other/one HTTP/1.1', b'GET http://site:81/one HTTP/1.1', b'GET http://user@site/one HTTP/1.1', b'GET http:///one HTTP/1.1',
        b'GET http:/one HTTP/1.1', b'GET ftp://site/one HTTP/1.1', b'GET //', b'GET /one', b'GET', b'GET /one HTTP/2.0',
        b'GET /one HTTP/0.9', b'GET /one HTTP/1.10', b'GET /one HTTP/01.1', b'GET /one HTTP/1', b'GET /one http/1.1', b'GET /one HTTPS/1.1',
        b'GET  /one HTTP/1.1', b'GET /one  HTTP/1.1', b'GET\t/one HTTP/1.1', b'GET /one\tHTTP/1.1', b'GET /one x HTTP/1.1', b'GET /one HTTP/1.1 ',
        b'GET /one#x HTTP/1.1', b'GET /\x00 HTTP/1.1', b'GET /\x7f HTTP/1.1', b'GET /\xe4 HTTP/1.1', b'GET 1 HTTP/1.1', b'GET * HTTP/1.1',
        b'G(T /one HTTP/1.1', b'GET: /one HTTP/1.1', b'CONNECT site:443 HTTP/1.1', b'CONNECT /one HTTP/1.1', b'PRI * HTTP/2.0',
        b'\x16\x03\x01 / HTTP/1.1',
    ]],
    # HTTP/1.0 has no chunks, HTTP/0.9 no head.
    b'POST /one HTTP/1.0\r\nHost: site\r\nTransfer-Encoding: chunked\r\n\r\n' + END + NEXT,
    b'POST /one HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n' + END + NEXT,
    b'GET /one\r\n\r\n',
    b'GET /one\r\n' + NEXT,
]

# Malformed chunks. The request may have begun at the origin, which must see neither its end nor the next request.
BROKEN = [CHUNKED + body + NEXT for body in [
    b'5 \r\nhello\r\n' + END, b' 5\r\nhello\r\n' + END, b'5\t\r\nhello\r\n' + END, b'0x5\r\nhello\r\n' + END, b'+5\r\nhello\r\n' + END,
    b'-5\r\nhello\r\n' + END, b'5\nhello\r\n' + END, b'5\r\nhello\n' + END, b'5\r\nhelloX\r\n' + END, b'5\r\nhell\r\n' + END,
    b'5\r\nhello' + END, b'\r\n' + END, b'g\r\nhello\r\n' + END, b'5\rhello\r\n' + END, b'5;\nhello\r\n' + END, b'5;x=\x00\r\nhello\r\n' + END,
    b'5;x\ry\r\nhello\r\n' + END, b'5;x\n\r\nhello\r\n' + END, b'ffffffffffffffff\r\nhello\r\n' + END, b'8000000000000000\r\nhello\r\n' + END,
    b'10000000000000005\r\nhello\r\n' + END, b'00000000000000000005\r\nhello\r\n' + END, b'5,\r\nhello\r\n' + END, b'5 ;x\r\nhello\r\n' + END,
    b'5\r\nhello\r\n0\n\r\n', b'5\r\nhello\r\n0\r\nX: y\n\r\n', b'5\r\nhello\r\n0\r\n X: y\r\n\r\n', b'5\r\nhello\r\n0\r\nX : y\r\n\r\n',
    b'5\r\nhello\r\n0\r\nX\r\n\r\n', b'5\r\nhello\r\n0\r\nX: \x00\r\n\r\n', b'5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n', b'5_0\r\nhello\r\n' + END,
    b'5.\r\nhello\r\n' + END, b'\x005\r\nhello\r\n' + END, b'5\x00\r\nhello\r\n' + END, b'5;' + b'x' * 9000 + b'\r\nhello\r\n' + END,
]]

def meant(*requests): return [list(request) for request in requests]

HIDDEN = ('GET', '/hidden', '')
# HTTP/1.0 needs no host. An origin that speaks only HTTP/2 may require one: then nothing is read.
HOSTLESS = b'POST /one HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello' + NEXT
# Odd but unambiguous: the origin must read exactly these requests.
READ = [
    (POST + b'Content-Length: 5\r\n\r\nhello' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (POST + b'content-LENGTH:5\t\r\n\r\nhello' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (POST + b'Content-Length: 005\r\n\r\nhello' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (POST + b'Content-Length: 0\r\n\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (POST + b'\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (POST + b'Content-Length: %d\r\n\r\n' % len(NEXT) + NEXT + NEXT, meant(('POST', '/one', NEXT.decode()), HIDDEN)),
    (CHUNKED + END + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (CHUNKED + b'5\r\nhello\r\n' + END + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'3\r\nhel\r\n2\r\nlo\r\n' + END + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'A\r\n0123456789\r\na\r\n0123456789\r\n' + END + NEXT, meant(('POST', '/one', '0123456789' * 2), HIDDEN)),
    (CHUNKED + b'00005\r\nhello\r\n000\r\n\r\n' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'5;x=y\r\nhello\r\n0;z\r\n\r\n' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'5;x="y z"\r\nhello\r\n' + END + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'5\r\nhello\r\n0\r\nX: y\r\n\r\n' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'5\r\nhello\r\n0\r\nContent-Length: 50\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (CHUNKED + b'%x\r\n' % len(NEXT) + NEXT + b'\r\n' + END + NEXT, meant(('POST', '/one', NEXT.decode()), HIDDEN)),
    (POST + b'Transfer-Encoding: CHUNKED\r\n\r\n' + b'2\r\n\r\n\r\n' + END + NEXT, meant(('POST', '/one', '\r\n'), HIDDEN)),
    (POST + b'transfer-encoding:chunked \t\r\n\r\n' + END + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (GET + b'Content-Length: 5\r\n\r\nhello' + NEXT, meant(('GET', '/two', 'hello'), HIDDEN)),
    (GET + b'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n' + END + NEXT, meant(('GET', '/two', 'hello'), HIDDEN)),
    (b'\r\n' + POST + b'\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (POST + b'Content-Length: 5\r\n\r\nhello\r\n' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (b'GET http://site/two?b=c HTTP/1.1\r\nHost: site\r\n\r\n' + NEXT, meant(('GET', '/two?b=c', ''), HIDDEN)),
    (b'GET HTTP://SITE?x HTTP/1.1\r\nHost: site\r\n\r\n' + NEXT, meant(('GET', '/?x', ''), HIDDEN)),
    (POST + b'Content_Length: 5\r\nTransfer_Encoding: chunked\r\n\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (POST + b'Connection: Content-Length, Host, X\r\nContent-Length: 5\r\n\r\nhello' + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (POST + b'Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n' + END + NEXT, meant(('POST', '/one', 'hello'), HIDDEN)),
    (b'GET /one HTTP/1.9\r\nHost: site\r\n\r\n' + NEXT, meant(('GET', '/one', ''), HIDDEN)),
    (POST + b'X-Content-Length: 5\r\nX: Content-Length: 6\r\n\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (POST + b'X: \x80\xff\r\n\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
    (POST + b'Connection: close\r\nContent-Length: 5\r\n\r\nhello' + NEXT, meant(('POST', '/one', 'hello'))),
    (HOSTLESS, meant(('POST', '/one', 'hello'))),
    (b'GET /two HTTP/1.0\r\nHost: site\r\nConnection: keep-alive\r\n\r\n' + NEXT, meant(('GET', '/two', ''), HIDDEN)),
    (POST + b'Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n' + NEXT, meant(('POST', '/one', ''), HIDDEN)),
]

class Stream:
    def __init__(self, connection):
        self.connection, self.data, self.ended = connection, b'', False
    def more(self):
        try: piece = self.connection.recv(65536)
        except (ConnectionResetError, ssl.SSLError): piece = b''
        if not piece: self.ended = True
        self.data += piece
    def until(self, mark):
        while mark not in self.data:
            if self.ended: return None
            self.more()
        found, self.data = self.data.split(mark, 1)
        return found
    def exactly(self, length):
        while len(self.data) < length and not self.ended: self.more()
        found, self.data = self.data[:length], self.data[length:]
        return found

def answer(stream):
    """The next final response: its status, and what the origin has read (None: not the origin's response)."""
    while True:
        head = stream.until(b'\r\n\r\n')
        if head is None: return None
        line, *fields = head.decode('latin1').split('\r\n')
        status = int(line.split(' ')[1])
        if status >= 200: break
    fields = {name.lower(): value.strip() for name, value in (field.split(':', 1) for field in fields)}
    if fields.get('transfer-encoding') == 'chunked':
        body = b''
        while size := int(stream.until(b'\r\n'), 16):
            body += stream.exactly(size)
            stream.exactly(2)
        stream.until(b'\r\n')
    elif 'content-length' in fields: body = stream.exactly(int(fields['content-length']))
    else:
        while not stream.ended: stream.more()
        body = stream.data
    return status, json.loads(body) if 'x-origin' in fields else None

LAST = b'GET /last HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n'

def answers(connection, raw):
    """All responses to `raw` and a last request behind it, until the connection ends."""
    try: connection.sendall(raw + LAST)
    except OSError: pass # refused before it was all sent
    stream, all = Stream(connection), []
    while one := answer(stream): all.append(one)
    connection.close()
    return all

def requests(answers): return [said for _, said in answers if said is not None and said[1] != '/last']

def corpus():
    for raw in REFUSED + BROKEN:
        got = answers(connect(), raw)
        statuses = [status for status, _ in got]
        if raw in BROKEN: assert statuses == [400], (raw, got)
        else: assert len(got) == 1 and statuses[0] in (400, 414, 431, 501, 505), (raw, got)
        assert requests(got) == [], (raw, got)
    for raw, expected in READ:
        got = answers(connect(), raw)
        if raw == HOSTLESS and 'host-required' in sys.argv:
            assert got == [(502, None)], (raw, got)
            continue
        assert requests(got) == expected and all(status == 200 for status, _ in got), (raw, got, expected)
    print(len(REFUSED) + len(BROKEN), 'refused,', len(READ), 'read')

# The parts of mixtures.
LINES = [b'POST /a HTTP/1.1', b'GET /b HTTP/1.1', b'PUT /c HTTP/1.1', b'POST /d HTTP/1.0', b'GET http://site/e HTTP/1.1', b'HEAD /f HTTP/1.1']
FIELDS = [b'Content-Length: 5', b'Content-Length: 0', b'Content-Length: 28', b'Transfer-Encoding: chunked', b'transfer-encoding: Chunked',
    b'X: y', b'Connection: keep-alive', b'Connection: close', b'Content-Length : 5', b'X:', b'Transfer-Encoding: identity', b'X: a\tb',
    b'Expect: 100-continue', b'Trailer: X', b'TE: trailers', b'X: y\r\n z', b'Content-Length:5 ']
BODIES = [b'', b'hello', END, b'5\r\nhello\r\n' + END, b'5;x\r\nhello\r\n0\r\nX: y\r\n\r\n', b'GET /inner HTTP/1.1\r\nHost: site\r\n\r\n',
    b'1c\r\nGET /i HTTP/1.1\r\nHost: a\r\n\r\n\r\n' + END, b'05\r\nhello\r\n00\r\n\r\n', b'5\r\nhello\r\n0\r\n\r\n\r\n', b'\r\n']

def mixture(chance):
    raw = b''
    for _ in range(chance.randint(1, 3)):
        fields = [b'Host: site'] + chance.sample(FIELDS, chance.choice([0, 1, 1, 1, 2, 2, 3]))
        raw += chance.choice(LINES) + b'\r\n' + b'\r\n'.join(fields) + b'\r\n\r\n' + chance.choice(BODIES)
    return raw

def mixtures():
    """The origin reads the same requests through truepeer as directly. Either may refuse what the other accepts."""
    chance, read = random.Random(7), 0
    for number in range(400):
        raw = mixture(chance)
        # `answer` would wait for a body, which a response to HEAD does not have.
        raw = raw.replace(b'HEAD ', b'PUT ')
        through = requests(answers(connect(), raw))
        if not through: continue
        alone = requests(answers(socket.create_connection(('127.0.0.1', 8080), 60), raw))
        for request in alone: request[1] = request[1].removeprefix('http://site')
        # An origin that refuses a request may leave earlier answers unsent.
        both = min(len(through), len(alone))
        assert through[:both] == alone[:both], (number, raw, through, alone)
        read += both > 0
    print(read, 'mixtures were read by both')

{'corpus': corpus, 'mixtures': mixtures}[sys.argv[1]]()
