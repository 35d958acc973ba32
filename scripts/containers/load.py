#!/usr/bin/env python3
"""Connects again and again, behind headers that each name another client, and counts the answers: load.py tcp|udp ADDRESS
PORT (COUNT | SECONDSs) [WORKERS]. Prints "named N raw N failed N": `named` answered that client, `raw` any other words.
With COUNT it ends when so many have been answered, or after a minute. SIGTERM ends it before that."""
import itertools
import signal
import socket
import sys
import threading
import time

from ask import ask

kind, address, port, until, *workers = sys.argv[1:]
kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[kind]
wanted = None if until.endswith("s") else int(until)
end = time.monotonic() + (60 if wanted else float(until[:-1]))
numbers = itertools.count()
counts = {"named": 0, "raw": 0, "failed": 0}
wrong = {}
failures = {}
lock = threading.Lock()


def stop(*_):
    global end
    end = 0


def work():
    while time.monotonic() < end and (not wanted or counts["named"] + counts["raw"] < wanted):
        number = next(numbers)
        client = (f"203.0.113.{number % 250 + 1}", 1024 + number % 60000)
        said = ask(kind, address, int(port), (*client, ("v1", "v2")[number % 2] if kind == socket.SOCK_STREAM else "v2"), timeout=0.5)
        with lock:
            if said == f"{client[0]} {client[1]}":
                counts["named"] += 1
            elif "Error" in said or said == "closed without an answer":
                counts["failed"] += 1
                failures[said] = failures.get(said, 0) + 1
            else:
                counts["raw"] += 1
                wrong[said] = client
        if "Error" in said:
            time.sleep(0.01)


signal.signal(signal.SIGTERM, stop)
threads = [threading.Thread(target=work) for _ in range(int(workers[0]) if workers else 8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*(f"{name} {count}" for name, count in counts.items()))
for said, client in list(wrong.items())[:5]:
    print(f"  {client[0]} {client[1]} was answered: {said}")
if failures:
    print(f"  failures: {failures}")
