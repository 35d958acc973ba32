#!/usr/bin/env python3
"""Runs a program under a seccomp profile in the form of container runtimes: under-seccomp.py PROFILE PROGRAM [ARGUMENT...].

Of the form it knows what deploy/kubernetes/seccomp-agent.json uses: lists of names that are allowed, and an error for all others.
"""

import ctypes
import json
import os
import re
import struct
import sys

NUMBERS = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, ABOVE, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
X86_64, X32 = 0xC000003E, 0x40000000


def program(profile):
    with open(NUMBERS) as header:
        numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read()))
    if profile["defaultAction"] != "SCMP_ACT_ERRNO" or any(set(each) != {"names", "action"} for each in profile["syscalls"]):
        sys.exit("the profile has what this program does not know")
    allowed = [name for each in profile["syscalls"] if each["action"] == "SCMP_ACT_ALLOW" for name in each["names"]]
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    code += [(ABOVE, 0, 1, X32), (RETURN, 0, 0, ERRNO | 1)]
    for name in allowed:
        # Of a newer kernel than these headers, or of another architecture.
        if name in numbers:
            code += [(EQUAL, 0, 1, int(numbers[name])), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, ERRNO | profile.get("defaultErrnoRet", 1)))
    return b"".join(struct.pack("HBBI", *each) for each in code)


def main():
    with open(sys.argv[1]) as file:
        code = program(json.load(file))
    code = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, filters, 0, 0)):
        if libc.prctl(*arguments):
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execv(sys.argv[2], sys.argv[2:])


main()
