"""Five wrong passwords, then: new connections are refused within 2 s, the open ones end, others are served.

Arguments: imaps, ssh, smtp (a relay that is refused) or http, and the port at the sender. Runs on the client, for IPv4 and for IPv6. Another client of
the same load balancer is one more address of this one.
"""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time

ADDRESSES = [
    ("203.0.113.7", "203.0.113.9", "198.51.100.10"),
    ("2001:db8:c::7", "2001:db8:c::9", "2001:db8:5::10"),
]
KIND, PORT = sys.argv[1], int(sys.argv[2])
# Two seconds, and more where others keep the processors busy.
LIMIT = 2 * max(1, os.getloadavg()[0] / os.cpu_count())


def connect(source: str, sender: str) -> socket.socket:
    """A connection that the server has greeted. OSError if it is refused."""
    connection = socket.create_connection((sender, PORT), timeout=5, source_address=(source, 0))
    if KIND == "imaps":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = context.wrap_socket(connection)
    if KIND == "http":
        connection.sendall(b"GET /open HTTP/1.1\r\nHost: server\r\n\r\n")
    said = connection.recv(256)
    while KIND == "http" and said and b"\r\n\r\nopen" not in said:
        said += connection.recv(256)
    if not said:
        raise ConnectionRefusedError
    return connection


WRONG = {
    "imaps": b"a LOGIN nobody wrong\r\nb LOGOUT\r\n",
    "http": b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\nAuthorization: Basic bm9ib2R5Ondyb25n\r\n\r\n",
}


def wrong_password(source: str, sender: str):
    if KIND == "smtp":
        connection = connect(source, sender)
        connection.settimeout(30)
        for line in ("EHLO client.example", "MAIL FROM:<a@client.example>", "RCPT TO:<b@elsewhere.example>", "QUIT"):
            connection.sendall(line.encode() + b"\r\n")
            if not connection.recv(4096):
                return
    elif KIND in WRONG:
        connection = connect(source, sender)
        connection.settimeout(30)
        connection.sendall(WRONG[KIND])
        while connection.recv(4096):
            pass
    else:
        # It answers with the prompt that it is given, which is wrong, too.
        given = {"PATH": "/usr/bin", "SSH_ASKPASS": "/bin/echo", "SSH_ASKPASS_REQUIRE": "force"}
        options = ["-o", "NumberOfPasswordPrompts=1", "-b", source, "-p", str(PORT)]
        done = subprocess.run(
            ["ssh", *options, f"anna@{sender}", "true"], env=given, capture_output=True, text=True
        )
        if done.returncode == 0:
            sys.exit("a wrong password was right")


def refused(source: str, sender: str) -> bool:
    try:
        connect(source, sender).close()
        return False
    except OSError:
        return True


def ended(connection: socket.socket) -> bool:
    connection.settimeout(5)
    try:
        while connection.recv(4096):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def logged_in(source: str, sender: str) -> socket.socket:
    connection = connect(source, sender)
    if KIND == "imaps":
        connection.sendall(b"a LOGIN anna right\r\n")
        if b"a OK" not in connection.recv(4096):
            sys.exit(f"{source} can't log in")
    return connection


for source, another, sender in ADDRESSES:
    length = "128" if ":" in another else "32"
    subprocess.run(
        [
            "ip",
            "address",
            "replace",
            f"{another}/{length}",
            "dev",
            "eth0",
            *(["nodad"] if length == "128" else []),
        ],
        check=True,
    )
    mine, others = logged_in(source, sender), logged_in(another, sender)
    tries = [threading.Thread(target=wrong_password, args=(source, sender)) for _ in range(5)]
    for each in tries:
        each.start()
        if KIND == "ssh":
            each.join()  # sshd drops some of ten that have not logged in (MaxStartups)
    for each in tries:
        each.join()
    begin = time.monotonic()
    while not refused(source, sender):
        if time.monotonic() > begin + LIMIT:
            sys.exit(f"{source} is not refused {LIMIT:.0f} s after five wrong passwords")
        time.sleep(0.05)
    print(f"{source} is refused {time.monotonic() - begin:.1f} s after five wrong passwords", flush=True)
    if not ended(mine):
        sys.exit(f"the open connection of {source} has not ended")
    if not refused(source, sender):
        sys.exit(f"{source} is served again")
    connect(another, sender).close()
    others.setblocking(False)
    try:
        others.recv(1)
        sys.exit(f"the open connection of {another} has ended")
    except (BlockingIOError, ssl.SSLWantReadError):
        print(f"{another} is served, and its open connection goes on", flush=True)
    subprocess.run(["ip", "address", "delete", f"{another}/{length}", "dev", "eth0"], check=True)
