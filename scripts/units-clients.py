"""Clients of one unit: each opens with a header that names it, and must be answered by its own name.

units-clients.py PORT KIND STOP [COUNT]: COUNT clients, or until the file STOP exists. Prints "RIGHT CUT", the clients that were named and those that were
cut by a restart; ends with 1 at the first wrong name. Kinds that answer nothing about the client count each answer as right: their
names are in the unit's log.
"""
import itertools, os, re, socket, struct, sys, threading, time

port, kind, stop = int(sys.argv[1]), sys.argv[2], sys.argv[3]
QUERY = b"\0\1\1\0\0\1\0\0\0\0\0\0\7version\4bind\0\0\x10\0\3"
# What a client sends, and what precedes and follows its name in the answer (None: the log names it).
KINDS = {
    "redis": (b"CLIENT INFO\r\nQUIT\r\n", r" addr={ip}:{port} "),
    "http": (b"GET / HTTP/1.0\r\n\r\n", r"client {ip}:{port}\n"),
    "memcached": (b"stats conns\r\nquit\r\n", r"tcp6?:(?:\[::ffff:)?{ip}\]?:{port}\r"),
    "mariadb": (b"", r"Host '{ip}'"),
    "postgres": (struct.pack("!ii", 21, 196608) + b"user\0nobody\0\0", r'host "{ip}"'),
    "plain": (b"x", r"^{ip}:{port}$"),
    "weblog": (b"GET / HTTP/1.0\r\n\r\n", None),
    "ssh": (b"SSH-2.0-client\r\n", None),
    "ftp": (b"QUIT\r\n", None),
    "smtp": (b"QUIT\r\n", None),
    "imap": (b"a logout\r\n", None),
    "dns": (struct.pack("!H", len(QUERY)) + QUERY, None),
}
question, name = KINDS[kind]
errors = []
counts, wrong, lock = {"right": 0, "cut": 0}, [], threading.Lock()
numbers = itertools.count() if len(sys.argv) < 5 else iter(range(int(sys.argv[4])))


def header(ip, sport, n):
    if n % 2:
        return f"PROXY TCP4 {ip} 192.0.2.1 {sport} {port}\r\n".encode()
    addresses = socket.inet_aton(ip) + socket.inet_aton("192.0.2.1") + struct.pack("!HH", sport, port)
    return b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack("!H", len(addresses)) + addresses


def ask(n):
    """"right", "cut", or the answer that names somebody else."""
    ip, sport = f"203.0.113.{n % 250 + 1}", 1024 + n * 7 % 60000
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as stream:
            first = header(ip, sport, n)
            # Each third header comes in two segments.
            if n % 3 == 0:
                stream.sendall(first[:9])
                time.sleep(.01)
                first = first[9:]
            stream.sendall(first + question)
            if kind == "plain":
                stream.shutdown(socket.SHUT_WR)
            while part := stream.recv(65536):
                answer += part
                if kind in ("dns", "ssh"):
                    break
    except OSError as error:
        errors.append(f"{n}: {error}")
    if not answer or b"the database system is " in answer:
        return "cut"
    if name is None or re.search(name.format(ip=re.escape(ip), port=sport), answer.decode("latin-1")):
        return "right"
    return f"{ip}:{sport} was answered: {answer[:300]!r}"


def client():
    while not wrong and not os.path.exists(stop):
        with lock:
            n = next(numbers, None)
        if n is None:
            return
        said = ask(n)
        with lock:
            if said in counts:
                counts[said] += 1
            else:
                wrong.append(said)
        if said == "cut":
            time.sleep(.05)


threads = [threading.Thread(target=client) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(counts["right"], counts["cut"])
if len(sys.argv) > 4 and counts["cut"]:
    print(*errors[:5], sep="\n")
sys.exit(f"a wrong name: {wrong[0]}" if wrong else 0)
