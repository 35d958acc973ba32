# The beginning of each client's script: the proxy's address (two arguments), and the origin's data of 1 MiB.
import hashlib, http.client, os, socket, ssl, sys, threading, time
DOOR = (sys.argv[1], int(sys.argv[2]))
PIECE = hashlib.shake_256(b'truepeer').digest(1 << 20)
context = ssl._create_unverified_context()
def connect():
    return context.wrap_socket(socket.create_connection(DOOR, 120), server_hostname='site.test')
def client():
    return http.client.HTTPSConnection(*DOOR, timeout=600, context=context)
def digest_of(count):
    digest = hashlib.sha256()
    for _ in range(count): digest.update(PIECE)
    return digest.hexdigest()
def read(response, digest, length):
    while length:
        data = response.read(min(length, 1 << 18))
        assert data, 'the end came early'
        digest.update(data)
        length -= len(data)
def head_of(stream):
    head = b''
    while not head.endswith(b'\r\n\r\n'):
        byte = stream.recv(1)
        assert byte, head
        head += byte
    return head
def on_threads(count, work):
    failures = []
    def careful(number):
        try: work(number)
        except BaseException as error: failures.append(repr(error))
    threads = [threading.Thread(target=careful, args=(number,)) for number in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failures, failures[:3]
