"""A host behind a tap device, 10.9.9.2. Each SIGUSR1 has it send the next datagram of one UDP flow to
10.9.9.1:5300: the first argument (hexadecimal) as its first payload, "alone" three times, then ten of eight bytes
as one aggregate. As virtio's, that has no count of its segments."""

import fcntl
import os
import signal
import struct
import sys

TUNSETIFF, TAP, WITHOUT_INFO, WITH_VNET_HEADER = 0x400454CA, 0x0002, 0x1000, 0x4000
NEEDS_SUM, UDP_SEGMENTS = 1, 5
PEER, OURS, HOSTS = "10.9.9.2", bytes([10, 9, 9, 2]), bytes([10, 9, 9, 1])
ETHERNET, IPV4, UDP = 14, 20, 8

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH14x", b"tap", TAP | WITHOUT_INFO | WITH_VNET_HEADER))
print("the device is there", flush=True)


def folded(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def frame(payload, segment):
    udp_len = UDP + len(payload)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, IPV4 + udp_len, 1, 0, 64, 17, 0, OURS, HOSTS)
    head = head[:10] + struct.pack("!H", folded(head) ^ 0xFFFF) + head[12:]
    pseudo = folded(OURS + HOSTS + struct.pack("!HH", 17, udp_len))
    udp = struct.pack("!HHHH", 7000, 5300, udp_len, pseudo)
    kind, header_len = (UDP_SEGMENTS, ETHERNET + IPV4 + UDP) if segment else (0, 0)
    vnet = struct.pack("=BBHHHH", NEEDS_SUM, kind, header_len, segment, ETHERNET + IPV4, 6)
    return vnet + bytes.fromhex("0200000000020200000000010800") + head + udp + payload


frames = [frame(bytes.fromhex(sys.argv[1]), 0)] + 3 * [frame(b"alone", 0)] + [frame(b"together" * 10, 8)]
for one in frames:
    signal.sigwait([signal.SIGUSR1])
    os.write(tap, one)
signal.pause()
