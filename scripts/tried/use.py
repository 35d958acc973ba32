#!/usr/bin/env python3
"""Uses an installed truepeer in each way, and says whether servers see the client: use.py [--only WAY,...] [--where NAME,HOW] [TRUEPEER...].

In this network namespace are truepeer and the servers; HAProxy is in one of its own, and its client in a third. TRUEPEER is the
command that runs truepeer, by default `truepeer`. HAPROXY names another HAProxy. Prints "ok WAY" or "FAILED WAY: ...", and fails
if a way failed. NAME of a distribution and HOW truepeer was installed become a row of docs/tried.md (page.py), by the last line.
"""

import json
import os
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

HERE, SENDER, CLIENT = "10.9.0.1", "10.9.0.7", "203.0.113.9"
WAYS = ["attach", "attach-udp", "preload", "notify", "proxy", "splice", "udp", "https"]
PORTS = {"attach": 81, "preload": 82, "notify": 83, "proxy": 84, "splice": 84, "https": 85}
BULK, PIECE = 8 << 20, 128 << 10


def run(command, **more):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


def serve(port):
    """TCP: says who the client is, what X-Forwarded-For says, or sends as many bytes as the path says."""
    listener = socket.create_server(("", port), backlog=64)
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=answer, args=(connection, peer), daemon=True).start()


def answer(connection, peer):
    with connection:
        head = b""
        while b"\r\n\r\n" not in head and (part := connection.recv(4096)):
            head += part
        fields = [line.split(": ")[1] for line in head.decode("latin-1").split("\r\n") if line.lower().startswith("x-forwarded-for:")]
        words = head.split()
        size = int(words[1][1:] or 0) if len(words) > 1 and words[1][1:].isdigit() else 0
        body = bytes(size) or f"{(fields or peer)[0]}\n".encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        # Slowly: a session leaves user space only while bytes still move.
        for begin in range(0, len(body), PIECE):
            connection.sendall(body[begin : begin + PIECE])
            time.sleep(0.02 if size else 0)


def serve_datagrams(port):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("", port))
    while True:
        _, peer = one.recvfrom(2048)
        one.sendto(peer[0].encode(), peer)


def ask(port, tls=False, path="/"):
    """The answer's body, by HAProxy's port of this number."""
    with socket.create_connection(("203.0.113.1", 8000 + port), timeout=20) as connection:
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection, server_hostname="localhost")
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer.partition(b"\r\n\r\n")[2]


def ask_datagram(port):
    header = b"\r\n\r\n\x00\r\nQUIT\n\x21\x12\x00\x0c" + socket.inet_aton(CLIENT) + socket.inet_aton(HERE) + b"\x13\xf5\x00\x35"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(20)
        one.connect((HERE, port))
        one.send(header + b"who?")
        return one.recv(2048)


def asked(namespace, *words):
    """In another namespace."""
    seen = run(["ip", "netns", "exec", namespace, sys.executable, __file__, "ask", *map(str, words)])
    return seen.stdout.strip().split("\n")[-1]


def network():
    for line in f"""netns add lb
netns add client
link set lo up
link add here type veth peer name lb0 netns lb
link add lb1 netns lb type veth peer name c0 netns client
addr add {HERE}/24 dev here
link set here up
-n lb link set lo up
-n lb addr add {SENDER}/24 dev lb0
-n lb link set lb0 up
-n lb addr add 203.0.113.1/24 dev lb1
-n lb link set lb1 up
-n client addr add {CLIENT}/24 dev c0
-n client link set c0 up""".split("\n"):
        done = run(["ip", *line.split()])
        if done.returncode:
            sys.exit(f"FAILED ip {line}: {done.stdout}")


def haproxy(directory):
    lines = ["defaults", "  mode tcp", "  timeout connect 20s", "  timeout client 60s", "  timeout server 60s"]
    for port in sorted(set(PORTS.values())):
        lines += [f"listen p{port}", f"  bind 203.0.113.1:{8000 + port}", f"  server s {HERE}:{port} send-proxy-v2"]
    file = os.path.join(directory, "haproxy.cfg")
    with open(file, "w") as out:
        out.write("\n".join(lines) + "\n")
    command = ["ip", "netns", "exec", "lb", *shlex.split(os.environ.get("HAPROXY", "haproxy")), "-db", "-f", file]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def listens(port, udp=False):
    """Waits until a socket of this port is there."""
    word = "-lun" if udp else "-ltn"
    for _ in range(600):
        if f":{port} " in run(["ss", "-H", word]).stdout:
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}")


def start(truepeer, *words):
    return subprocess.Popen([*truepeer, *words], stdout=sys.stdout, stderr=sys.stdout)


def finish(process):
    process.terminate()
    # The second signal ends open flows at once.
    for _ in range(2):
        try:
            return process.wait(2)
        except subprocess.TimeoutExpired:
            process.terminate()
    return process.wait(60)


def try_way(way, truepeer, directory):
    allow = ["--allow", SENDER]
    if way in ("attach", "attach-udp"):
        port = "53/udp" if way == "attach-udp" else "81"
        done = run([*truepeer, "attach", "--port", port, *allow])
        if done.returncode:
            return done.stdout.strip()
        try:
            return asked("lb", "udp", 53) if way == "attach-udp" else asked("client", "tcp", 81)
        finally:
            run([*truepeer, "attach", "detach"])
    if way in ("preload", "notify"):
        port = PORTS[way]
        process = start(truepeer, "run", "--via", way, *allow, "--", sys.executable, __file__, "serve", str(port))
        try:
            listens(port)
            return asked("client", "tcp", port)
        finally:
            finish(process)
    admin = os.path.join(directory, "admin.sock")
    words = {
        "proxy": ["proxy", "-l", f"{HERE}:84", "-4", "127.0.0.1:9080", *allow],
        "splice": ["proxy", "-l", f"{HERE}:84", "-4", "127.0.0.1:9080", *allow, "--admin", admin],
        "udp": ["proxy", "-p", "udp", "-l", f"{HERE}:86", "-4", "127.0.0.1:9081", *allow],
        "https": ["https", "-l", f"{HERE}:85", "--tls-cert", "self", "--origin", "http://127.0.0.1:9080", *allow, "--header", "require"],
    }[way]
    process = start(truepeer, *words)
    try:
        if way == "udp":
            listens(86, udp=True)
            return asked("lb", "udp", 86)
        listens(PORTS[way])
        if way != "splice":
            return asked("client", "tls" if way == "https" else "tcp", PORTS[way])
        size = asked("client", "size", 84)
        counted = metric(admin, "truepeer_sessions_spliced_total")
        return CLIENT if size == str(BULK) and counted >= 1 else f"{size} bytes, {counted} sessions left user space"
    finally:
        finish(process)


def metric(admin, name):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(admin)
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b""
        while part := one.recv(1 << 16):
            text += part
    return sum(float(line.split()[-1]) for line in text.decode().split("\n") if line.startswith(name))


def main(words):
    options = {"--only": ",".join(WAYS), "--where": ","}
    while words[:1] and words[0] in options:
        options[words[0]], words = words[1], words[2:]
    only, where = options["--only"].split(","), options["--where"].rsplit(",", 1)
    truepeer = words or ["truepeer"]
    network()
    for port in (81, 9080):
        threading.Thread(target=serve, args=(port,), daemon=True).start()
    for port in (53, 9081):
        threading.Thread(target=serve_datagrams, args=(port,), daemon=True).start()
    failed = []
    with tempfile.TemporaryDirectory() as directory:
        balancer = haproxy(directory)
        for way in only:
            begin = time.monotonic()
            try:
                seen = try_way(way, truepeer, directory)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                seen = f"{type(error).__name__}: {error}"
            failed += [way] * (seen != CLIENT)
            print(f"ok {way} ({time.monotonic() - begin:.1f} s)" if seen == CLIENT else f"FAILED {way}: {seen}", flush=True)
        finish(balancer)
    row = {"distribution": where[0], "how": where[1], "processor": os.uname().machine, "kernel": os.uname().release}
    row |= {"date": time.strftime("%Y-%m-%d"), "ways": {way: way not in failed for way in only}}
    print("tried: " + json.dumps(row))
    sys.exit(1 if failed else 0)


match sys.argv[1:]:
    case ["serve", port]:
        serve(int(port))
    case ["ask", "udp", port]:
        print(ask_datagram(int(port)).decode())
    case ["ask", "size", port]:
        print(len(ask(int(port), path=f"/{BULK}")))
    case ["ask", kind, port]:
        print(ask(int(port), tls=kind == "tls").decode())
    case words:
        main(words)
