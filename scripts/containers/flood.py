#!/usr/bin/env python3
"""Takes all places of an HTTP server: flood.py ADDRESS PORT CONNECTIONS SECONDS. A request on each every 4 s; what is closed is opened again."""
import socket
import sys
import time

address, port, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
open_ones = [None] * count
end = time.monotonic() + seconds
while time.monotonic() < end:
    for n in range(count):
        try:
            if open_ones[n] is None:
                open_ones[n] = socket.create_connection((address, port), 1)
            open_ones[n].send(b"GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n")
        except OSError:
            open_ones[n] = None
    time.sleep(min(4, max(0, end - time.monotonic())))
