#!/usr/bin/env python3
"""Asks a server who its client is: ask.py tcp|udp ADDRESS PORT [CLIENT CLIENTPORT [v1|v2]]. With CLIENT, behind a PROXY header
that names it. Prints the answer's words, or the error: never nothing."""
import socket
import struct
import sys

QUERY = struct.pack("!6H", 0x7472, 0x0100, 1, 0, 0, 0) + b"\x03who\x07example\x00" + struct.pack("!2H", 16, 1)


def header(version, kind, client, port):
    six = ":" in client
    to = "2001:db8::1" if six else "192.0.2.1"
    if version == "v1":
        return f"PROXY TCP{'6' if six else '4'} {client} {to} {port} 80\r\n".encode()
    family = socket.AF_INET6 if six else socket.AF_INET
    body = socket.inet_pton(family, client) + socket.inet_pton(family, to) + struct.pack("!2H", port, 80)
    transport = (0x20 if six else 0x10) | (1 if kind == socket.SOCK_STREAM else 2)
    return b"\r\n\r\n\x00\r\nQUIT\n" + struct.pack("!BBH", 0x21, transport, len(body)) + body


def words(answer):
    """Of an HTTP answer, of a TXT record behind the query, or text."""
    if answer.startswith(QUERY[:2]):
        return answer[len(QUERY) + 13 :].decode()
    head, _, body = answer.decode("latin-1").rpartition("\r\n\r\n")
    body = body.strip().removeprefix("::ffff:")  # as nginx names an IPv4 client of an IPv6 socket
    return body if not head or " 200 " in head.splitlines()[0] else head.splitlines()[0]


def ask(kind, address, port, client=None, timeout=2.0):
    """client: (address, port, version). Errors are answers, too."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as s:
            s.settimeout(timeout)
            s.connect((address, port))
            ahead = header(client[2], kind, client[0], client[1]) if client else b""
            if kind == socket.SOCK_DGRAM:
                s.send(ahead + QUERY)
                return words(s.recv(2048))
            s.sendall(ahead + b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while part := s.recv(4096):
                answer += part
            return words(answer) if answer else "closed without an answer"
    except OSError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    kind, address, port, *client = sys.argv[1:]
    kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[kind]
    if client:
        client = (client[0], int(client[1]), client[2] if len(client) > 2 else "v2")
    print(ask(kind, address, int(port), client or None))
