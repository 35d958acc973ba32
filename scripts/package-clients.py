"""Clients of the example configuration during an upgrade: new connections all the time, and one that stays.

Ends when the file exists that the argument names. Two more arguments: truepeer's port, and the backend's. Fails if a connection was refused or cut, or if the backend saw another address
than the header's.
"""

import os
import socket
import sys
import threading
import time

CLIENT = "192.0.2.7"
DOOR, BACKEND = (int(port) for port in sys.argv[2:4] or (8443, 443))


def serve(listener):
    """The backend: says who the client is, then echoes."""
    while True:
        connection, address = listener.accept()
        threading.Thread(target=echo, args=(connection, address[0]), daemon=True).start()


def echo(connection, client):
    with connection:
        connection.sendall(f"{client}\n".encode())
        while data := connection.recv(4096):
            connection.sendall(data)


def connect():
    """A session by truepeer. Returns its stream, once the backend has named the client."""
    connection = socket.create_connection(("127.0.0.1", DOOR), timeout=5)
    connection.sendall(f"PROXY TCP4 {CLIENT} 192.0.2.1 4000 443\r\n".encode())
    stream = connection.makefile("rwb")
    seen = stream.readline().decode().strip()
    assert seen == CLIENT, f"the backend saw {seen!r}"
    return stream


def exchange(stream, text):
    stream.write(text + b"\n")
    stream.flush()
    answer = stream.readline()
    assert answer == text + b"\n", f"expected {text}, got {answer}"


def main():
    listener = socket.create_server(("127.0.0.1", BACKEND), backlog=256)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    stays, count = connect(), 0
    print("connected", flush=True)
    while not os.path.exists(sys.argv[1]):
        with connect() as stream:
            exchange(stream, b"new %d" % count)
        exchange(stays, b"stays %d" % count)
        count += 1
        time.sleep(0.01)
    print(f"{count} connections during the upgrade, none refused; one open since before it, not cut")


main()
