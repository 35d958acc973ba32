#!/usr/bin/python3
"""Stands for a game server: a TCP and a UDP port, dual-stack, and a log that names who joins."""

import selectors
import socket
import sys

sockets = selectors.DefaultSelector()
for port, kind in zip(map(int, sys.argv[1:]), (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
    listener = socket.socket(socket.AF_INET6, kind)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", port))
    if kind == socket.SOCK_STREAM:
        listener.listen()
    sockets.register(listener, selectors.EVENT_READ, kind)


def name(peer) -> str:
    address = peer[0].removeprefix("::ffff:")
    return f"[{address}]:{peer[1]}" if ":" in address else f"{address}:{peer[1]}"


while True:
    for key, _ in sockets.select():
        if key.data == socket.SOCK_STREAM:
            connection, peer = key.fileobj.accept()
            connection.sendall(f"welcome, {name(peer)}\n".encode())
            connection.close()
        else:
            _, peer = key.fileobj.recvfrom(2048)
            key.fileobj.sendto(f"welcome, {name(peer)}\n".encode(), peer)
        print(f"{'player' if key.data == socket.SOCK_STREAM else 'voice'} from {name(peer)}", flush=True)
