"""Makes system calls in a running process, as if its own program made them, and prints each answer: NAME RESULT.

    inside.py PID FILE-TO-CREATE FILE-TO-READ [NAME-TO-LEAVE-OUT...]

The process is stopped by ptrace(2) while it waits in a system call, so that its instruction pointer is behind a `syscall`
instruction, which is executed again with other registers. Everything that confines the process applies. x86-64 only.
"""

import ctypes
import os
import signal
import struct
import sys

NAMES = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"
ATTACH, DETACH, GETREGS, SETREGS, SINGLESTEP = 16, 17, 12, 13, 9
AT_FDCWD, O_WRONLY, O_CREAT, O_APPEND = -100, 1, 0o100, 0o2000
RAW, STREAM, DATAGRAM, AF_NETLINK = 3, 1, 2, 16


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in NAMES.split()]


libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])


def ptrace(request, address=0, data=0):
    answer = libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), data)
    if answer < 0:
        sys.exit(f"ptrace {request}: {os.strerror(ctypes.get_errno())}")


def stopped_by():
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status), f"the process ended: {status:#x}"
    return os.WSTOPSIG(status)


ptrace(ATTACH)
stopped_by()
before = Registers()
ptrace(GETREGS, data=ctypes.byref(before))
memory = open(f"/proc/{pid}/mem", "r+b", buffering=0)
memory.seek(before.rip - 2)
assert memory.read(2) == b"\x0f\x05", "not behind a syscall instruction"
# Far below what the waiting call uses of its stack.
place = before.rsp - 8192


def call(number, *arguments):
    """Texts and bytes are copied into the process. Returns the call's result, or its negative errno."""
    registers, free, values = Registers.from_buffer_copy(before), place, []
    for argument in arguments:
        if isinstance(argument, str):
            argument = argument.encode() + b"\0"
        if isinstance(argument, bytes):
            memory.seek(free)
            memory.write(argument)
            argument, free = free, free + 256
        values.append(argument % 2**64)
    registers.rip -= 2
    registers.rax, registers.orig_rax = number, 2**64 - 1
    for name, value in zip("rdi rsi rdx r10 r8 r9".split(), values + [0] * 6):
        setattr(registers, name, value)
    ptrace(SETREGS, data=ctypes.byref(registers))
    ptrace(SINGLESTEP)
    while stopped_by() != signal.SIGTRAP:
        ptrace(SINGLESTEP)
    ptrace(GETREGS, data=ctypes.byref(registers))
    return ctypes.c_longlong(registers.rax).value


def reads(path):
    return call(257, AT_FDCWD, path, 0)


def netlink(kind, body):
    """Sends a request to rtnetlink, and returns the kernel's answer: 0 or a negative errno."""
    request, acknowledge, create = 1, 4, 0x400
    message = struct.pack("=IHHII", 16 + len(body), kind, request | acknowledge | create, 1, 0) + body
    descriptor = call(41, AF_NETLINK, RAW, 0)
    sent = call(44, descriptor, message, len(message), 0, 0, 0)
    if sent != len(message):
        return sent
    # The answer is written over the message.
    call(45, descriptor, message, 256, 0, 0, 0)
    memory.seek(place + 16)
    (error,) = struct.unpack("=i", memory.read(4))
    call(3, descriptor)
    return error


def rule(kind):
    """`ip rule add|delete from 198.51.100.99 table 250 priority 77`"""
    header = struct.pack("=8BI", 2, 0, 32, 0, 250, 0, 0, 1, 0)
    source = struct.pack("=HH4B", 8, 2, 198, 51, 100, 99)
    return netlink(kind, header + source + struct.pack("=HHI", 8, 6, 77))


def route():
    """`ip route add local default dev lo table 251`"""
    header = struct.pack("=8BI", 2, 0, 0, 0, 251, 3, 254, 2, 0)
    return netlink(24, header + struct.pack("=HHI", 8, 4, 1))


def socket(family, kind, protocol=0):
    """Closes it at once."""
    descriptor = call(41, family, kind, protocol)
    if descriptor >= 0:
        call(3, descriptor)
    return descriptor


def option(kind, level, name):
    """Sets an option of a new IPv4 socket to 1."""
    descriptor = call(41, 2, kind, 0)
    result = call(54, descriptor, level, name, struct.pack("=i", 1), 4)
    call(3, descriptor)
    return result


TRIES = {
    # This one is permitted: it shows that calls arrive.
    "getpid": lambda: call(39),
    "execve": lambda: call(59, "/nonexistent", 0, 0),
    "execveat": lambda: call(322, AT_FDCWD, "/nonexistent", 0, 0, 0),
    # CLONE_THREAD alone is an error, so no process begins where the call is permitted.
    "clone": lambda: call(56, 0x10000, 0, 0, 0, 0),
    "clone3": lambda: call(435, 0, 0),
    "ptrace": lambda: call(101, 0),
    "process_vm_readv": lambda: call(310, os.getpid(), 0, 0, 0, 0, 0),
    "kill": lambda: call(62, os.getpid(), 0),
    "mount": lambda: call(165, "none", "/nonexistent", "tmpfs", 0, 0),
    "unshare": lambda: call(272, 0),
    "setns": lambda: call(308, -1, 0),
    "setuid": lambda: call(105, 0),
    "capset": lambda: call(126, 0, 0),
    "bpf": lambda: call(321, 0, 0, 0),
    "io_uring_setup": lambda: call(425, 0, 0),
    "memfd_create": lambda: call(319, "x", 0),
    "keyctl": lambda: call(250, 0, 0, 0),
    "socket_packet": lambda: socket(17, RAW),
    "socket_raw": lambda: socket(2, RAW, 6),
    "socket_raw_ipv6": lambda: socket(10, RAW, 6),
    "socket_vsock": lambda: socket(40, STREAM),
    "socket_netlink_audit": lambda: socket(AF_NETLINK, RAW, 9),
    "socket_netlink_route": lambda: socket(AF_NETLINK, RAW),
    "socket_stream": lambda: socket(2, STREAM),
    "socket_datagram": lambda: socket(2, DATAGRAM),
    "listen": lambda: call(50, -1, 1),
    "accept": lambda: call(43, -1, 0, 0),
    "unlinkat": lambda: call(263, AT_FDCWD, "/nonexistent", 0),
    "rule_add": lambda: rule(32),
    "rule_delete": lambda: rule(33),
    "route_add": route,
    "tcp_repair": lambda: option(STREAM, 6, 19),
    "bpf_prog_load": lambda: call(321, 5, 0, 0),
    "bpf_map_get_fd_by_id": lambda: call(321, 14, 0, 0),
    "buffer_force": lambda: option(DATAGRAM, 1, 33),
    "write_switch": lambda: call(257, AT_FDCWD, "/proc/sys/net/ipv4/tcp_fwmark_accept", O_WRONLY),
    "read_shadow": lambda: reads("/etc/shadow"),
    "read_other": lambda: reads(sys.argv[3]),
    "write_kernel_switch": lambda: call(257, AT_FDCWD, "/proc/sys/kernel/hostname", O_WRONLY),
    "read_init": lambda: reads("/proc/1/environ"),
    "append_to_passwd": lambda: call(257, AT_FDCWD, "/etc/passwd", O_WRONLY | O_APPEND),
    "create_file": lambda: call(257, AT_FDCWD, sys.argv[2], O_WRONLY | O_CREAT, 0o600),
}
for name, attempt in TRIES.items():
    if name not in sys.argv[4:]:
        print(name, attempt())
ptrace(SETREGS, data=ctypes.byref(before))
ptrace(DETACH)
