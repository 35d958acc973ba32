//! Published vulnerabilities and defects of other programs, each as the bytes that trigger it.

use super::Expect::{Inet, Local, NeedMore, Refused, Unspecified};
use super::{Vector, binary, v4, v6, vector};
use crate::error::DecodeErrorKind::{
    NotProxy, V1Address, V1Port, V1TooLong, V2AddressTooShort, V2Command, V2Family,
};
use crate::header::Transport::Stream;

/// Corpus of published failures.
#[rustfmt::skip]
pub const PUBLISHED: &[Vector] = &[
    // Panic on an index beyond the block (CVE-2019-14243's class; path-network/go-mmproxy).
    vector("CVE-2019-14243: IPv4 in 0 bytes", binary!(b"\x21\x11\x00\x00"), Refused(V2AddressTooShort, 14)),
    vector("CVE-2019-14243: IPv6 in 0 bytes", binary!(b"\x21\x21\x00\x00"), Refused(V2AddressTooShort, 14)),
    // A connection without a header, or with an endless one, held a goroutine or memory for ever (go-proxyproto).
    vector("CVE-2021-23409: no header at all", b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", Refused(NotProxy, 0)),
    vector("CVE-2021-23409: a TLS client without header", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Refused(NotProxy, 0)),
    vector("CVE-2021-23409: a header that never goes on", b"PROXY TCP4 192.0.2.1", NeedMore(7)),
    vector("CVE-2021-23351: a line that never ends", b"PROXY UNKNOWN aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        Refused(V1TooLong, 105)),
    // Envoy crashed where the system has no IPv6, on LOCAL, and on strings that are not UTF-8.
    vector("CVE-2024-23325: IPv6 where it may be disabled, v1", b"PROXY TCP6 1:2:3::4 5:6::7:8 1234 5678\r\n",
        Inet(Stream, v6([1, 2, 3, 0, 0, 0, 0, 4], 1234), v6([5, 6, 0, 0, 0, 0, 7, 8], 5678), 40)),
    vector("CVE-2024-23325: IPv6 where it may be disabled, v2", binary!(b"\x21\x21\x00\x24\0\x01\0\x02\0\x03\0\0\0\0\0\0\0\0\0\x04\0\x05\0\x06\0\0\0\0\0\0\0\0\0\x07\0\x08\x04\xd2\x16\x2e"),
        Inet(Stream, v6([1, 2, 3, 0, 0, 0, 0, 4], 1234), v6([5, 6, 0, 0, 0, 0, 7, 8], 5678), 52)),
    vector("CVE-2024-23327: a load balancer's LOCAL health check", binary!(b"\x20\x00\x00\x00"), Local(16)),
    vector("CVE-2024-23327: LOCAL with a NOOP", binary!(b"\x20\x00\x00\x03\x04\x00\x00"), Local(19)),
    vector("CVE-2024-23324: authority that is not UTF-8", binary!(b"\x21\x11\x00\x11\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x02\x00\x02\xff\xfe"),
        Inet(Stream, v4([192, 0, 2, 1], 56324), v4([198, 51, 100, 2], 443), 33)),
    vector("CVE-2024-23324: custom value that is not UTF-8", binary!(b"\x21\x11\x00\x11\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\xe2\x00\x02\xff\xfe"),
        Inet(Stream, v4([192, 0, 2, 1], 56324), v4([198, 51, 100, 2], 443), 33)),
    // kzemek/go-mmproxy.
    vector("go-mmproxy: LOCAL with a family and a short block", binary!(b"\x20\x11\x00\x04\xc0\x00\x02\x01"), Local(20)),
    vector("go-mmproxy: port 0 refused", b"PROXY TCP4 192.0.2.1 192.0.2.2 0 0\r\n",
        Inet(Stream, v4([192, 0, 2, 1], 0), v4([192, 0, 2, 2], 0), 36)),
    vector("go-mmproxy: leading zeros accepted", b"PROXY TCP4 192.0.2.1 192.0.2.2 01 02\r\n", Refused(V1Port, 31)),
    vector("go-mmproxy: zone accepted", b"PROXY TCP6 fe80::1%lo fe80::2 1 2\r\n", Refused(V1Address, 18)),
    vector("go-mmproxy: over-long v1 accepted", b"PROXY TCP4 192.0.2.1 192.0.2.2 1                                                                              2\r\n",
        Refused(V1TooLong, 105)),
    // NGINX.
    vector("NGINX: commands 2 to 15 accepted", binary!(b"\x23\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb"), Refused(V2Command, 12)),
    vector("NGINX: reserved families accepted", binary!(b"\x21\x51\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb"), Refused(V2Family, 13)),
    // HAProxy.
    vector("HAProxy: UNKNOWN with addresses refused", b"PROXY UNKNOWN 192.0.2.1 192.0.2.2 1 2\r\n", Unspecified(39)),
    vector("HAProxy: leading zeros accepted", b"PROXY TCP4 192.0.2.1 192.0.2.2 0080 2\r\n", Refused(V1Port, 31)),
    // libproxyproto.
    vector("libproxyproto: v1 TCP6 never set", b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n",
        Inet(Stream, v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1), v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2], 2), 40)),
];
