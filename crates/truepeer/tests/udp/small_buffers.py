"""Runs a program as if net.core.rmem_max and wmem_max were small, which no test may change: SO_RCVBUF and SO_SNDBUF do nothing.
SO_RCVBUFFORCE and SO_SNDBUFFORCE work as ever."""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, LEVEL, NAME = 0, 24, 32
ALLOW, SUCCEED_WITHOUT_DOING = 0x7FFF0000, 0x00050000
SETSOCKOPT = {"x86_64": 54, "aarch64": 208}[os.uname().machine]
SOL_SOCKET, SO_SNDBUF, SO_RCVBUF = 1, 7, 8

program = b"".join(
    struct.pack("=HBBI", *line)
    for line in [
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 5, SETSOCKOPT),
        (LOAD, 0, 0, LEVEL),
        (EQUAL, 0, 3, SOL_SOCKET),
        (LOAD, 0, 0, NAME),
        (EQUAL, 2, 0, SO_RCVBUF),
        (EQUAL, 1, 0, SO_SNDBUF),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, SUCCEED_WITHOUT_DOING),
    ]
)
lines = ctypes.create_string_buffer(program)
description = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(lines)))
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, description, 0, 0) != 0:
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
