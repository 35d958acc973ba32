"""Clients that keep connecting while a host boots. Argument: HOST:PORT of an HTTP server.

Prints a line after the first answer. When standard input ends, it waits for an answer once more, and prints how
many connections were answered. It fails if none was answered, or each.
"""

import socket
import sys
import threading
import time

HOST, PORT = sys.argv[1].rsplit(":", 1)
counts, lock = {True: 0, False: 0}, threading.Lock()
stopped, served = threading.Event(), threading.Event()


def answered() -> bool:
    """Whether the server answers with a page. A silent try is given up soon, so that the next one comes soon."""
    try:
        with socket.create_connection((HOST, int(PORT)), timeout=0.3) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: test\r\n\r\n")
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def keep_connecting():
    while not stopped.is_set():
        result = answered()
        with lock:
            counts[result] += 1
            if result:
                served.set()
        time.sleep(0.01)


threads = [threading.Thread(target=keep_connecting) for _ in range(20)]
for thread in threads:
    thread.start()
served.wait(60)
with lock:
    counts = {True: 0, False: 0}
    served.clear()
print("connecting", flush=True)
sys.stdin.read()
with lock:
    served.clear()
back = served.wait(60)
stopped.set()
for thread in threads:
    thread.join()
print(f"{counts[True]} connections answered, {counts[False]} not")
sys.exit(not (back and counts[False]))
