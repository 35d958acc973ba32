# An origin: GET /mebibytes/N, GET /echo/WORD, POST /digest (with a length or in chunks: also its trailers), GET /chunked (with
# a trailer), GET /upgrade (sends back what comes).
import hashlib, http.server, socketserver, sys
PIECE = hashlib.shake_256(b'truepeer').digest(1 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = 'HTTP/1.1', True
    def log_message(self, *_): pass
    def say(self):
        sys.stdout.write(f'request {self.path}\n') # in one write: threads do it at the same time
        sys.stdout.flush()
    def answer(self, body):
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        _, what, *more = self.path.split('/')
        if what == 'echo': return self.answer(more[0].encode())
        self.say()
        if what == 'upgrade': return self.upgrade()
        self.send_response(200)
        if what == 'mebibytes':
            self.send_header('Content-Length', str(int(more[0]) << 20))
            self.end_headers()
            for _ in range(int(more[0])): self.wfile.write(PIECE)
        else:
            self.send_header('Transfer-Encoding', 'chunked')
            self.send_header('Trailer', 'X-After')
            self.end_headers()
            for length in [1, 70000, 3]: self.wfile.write(b'%x\r\n%s\r\n' % (length, b'q' * length))
            self.wfile.write(b'0\r\nX-After: it is over\r\n\r\n')
        sys.stdout.write('sent\n')
        sys.stdout.flush()
    def do_POST(self):
        self.say()
        digest, length, trailers = hashlib.sha256(), self.headers.get('Content-Length'), b''
        left = int(length or 0)
        while left > 0:
            piece = self.rfile.read(min(left, 65536))
            digest.update(piece)
            left -= len(piece)
        while length is None:
            size = int(self.rfile.readline(), 16)
            if size == 0: break
            digest.update(self.rfile.read(size))
            self.rfile.readline()
        while length is None and (line := self.rfile.readline().strip()): trailers += b' ' + line
        self.answer(digest.hexdigest().encode() + trailers)
    def upgrade(self):
        self.send_response(101)
        self.send_header('Connection', 'Upgrade')
        self.send_header('Upgrade', 'echo')
        self.end_headers()
        while data := self.connection.recv(65536): self.wfile.write(data)
        self.close_connection = True
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size = True, 1024
    def handle_error(self, *_): pass # clients that leave
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
