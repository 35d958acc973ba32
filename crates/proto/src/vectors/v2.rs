//! Version 2 without extensions (PROXY 2.2).

use super::Expect::{Inet, Local, NeedMore, Refused, Unix, Unspecified};
use super::{Vector, binary, v4, v6, vector};
use crate::error::DecodeErrorKind::{
    NotProxy, V2AddressTooShort, V2Command, V2Family, V2TooLong, V2Transport, V2Version,
};
use crate::header::Transport::{Dgram, Stream};

const CLIENT6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const DESTINATION6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];

/// 16 fixed bytes and two paths of 108, the first byte of each set.
const UNIX: [u8; 16 + 216] = {
    let mut whole = [0; 16 + 216];
    let start: [u8; 16] = super::signed(b"\x21\x31\x00\xd8");
    let mut at = 0;
    while at < start.len() {
        whole[at] = start[at];
        at += 1;
    }
    whole[16] = b'a';
    whole[16 + 108] = b'b';
    whole
};

/// Headers, whole, partial and wrong.
#[rustfmt::skip]
pub const V2: &[Vector] = &[
    // Accepted.
    vector("v2 TCP over IPv4", binary!(b"\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbbGET /"),
        Inet(Stream, v4([192, 0, 2, 1], 56324), v4([198, 51, 100, 2], 443), 28)),
    vector("v2 UDP over IPv4", binary!(b"\x21\x12\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\x00\x00\xff\xff"),
        Inet(Dgram, v4([192, 0, 2, 1], 0), v4([198, 51, 100, 2], 65535), 28)),
    vector("v2 TCP over IPv6", binary!(b"\x21\x21\x00\x24\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x00\x01\x00\x02"),
        Inet(Stream, v6(CLIENT6, 1), v6(DESTINATION6, 2), 52)),
    vector("v2 UDP over IPv6", binary!(b"\x21\x22\x00\x24\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x00\x01\x00\x02"),
        Inet(Dgram, v6(CLIENT6, 1), v6(DESTINATION6, 2), 52)),
    vector("v2 mapped addresses stay as sent", binary!(b"\x21\x21\x00\x24\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x01\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x02\x00\x01\x00\x02"),
        Inet(Stream, v6([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x201], 1), v6([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x202], 2), 52)),
    vector("v2 UNIX stream", &UNIX, Unix(Stream, 232)),
    vector("v2 UNSPEC", binary!(b"\x21\x00\x00\x00rest"), Unspecified(16)),
    vector("v2 UNSPEC with addresses", binary!(b"\x21\x00\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb"), Unspecified(28)),
    vector("v2 IPv4 over an unspecified protocol", binary!(b"\x21\x10\x00\x04\xc0\x00\x02\x01"), Unspecified(20)),
    vector("v2 TCP over an unspecified family", binary!(b"\x21\x01\x00\x00"), Unspecified(16)),

    // LOCAL: accepted whatever follows, which is skipped.
    vector("v2 LOCAL", binary!(b"\x20\x00\x00\x00SSH-2.0-"), Local(16)),
    vector("v2 LOCAL with addresses", binary!(b"\x20\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbbrest"), Local(28)),
    vector("v2 LOCAL with a short block, part of which looks like a wrong CRC32C", binary!(b"\x20\x11\x00\x08\xc0\x03\x00\x04\xde\xad\xbe\xefrest"), Local(24)),
    vector("v2 LOCAL with unassigned family and protocol", binary!(b"\x20\xff\x00\x03abcrest"), Local(19)),

    // Incomplete.
    vector("v2 one byte", b"\r", NeedMore(15)),
    vector("v2 signature only", binary!(b""), NeedMore(4)),
    vector("v2 one byte of the length", binary!(b"\x21\x11\x00"), NeedMore(1)),
    vector("v2 no addresses yet", binary!(b"\x21\x11\x00\x0c"), NeedMore(12)),
    vector("v2 all but one byte", binary!(b"\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01"), NeedMore(1)),
    vector("v2 LOCAL, block to come", binary!(b"\x20\x00\x00\x05ab"), NeedMore(3)),
    vector("v2 longest that fits the limit", binary!(b"\x21\x11\x3f\xf0"), NeedMore(16368)),

    // Refused, as soon as the byte is there.
    vector("v2 broken signature", b"\r\n\r\n\x01", Refused(NotProxy, 4)),
    vector("two empty lines before a request", b"\r\n\r\nGET / HTTP/1.1\r\n", Refused(NotProxy, 4)),
    vector("v2 signature without its end", b"\r\n\r\n\0\r\nQUIT\r", Refused(NotProxy, 11)),
    vector("v2 version 1", binary!(b"\x11"), Refused(V2Version, 12)),
    vector("v2 version 3", binary!(b"\x31\x11\x00\x0c"), Refused(V2Version, 12)),
    vector("v2 version 0", binary!(b"\x01\x11\x00\x0c"), Refused(V2Version, 12)),
    vector("v2 command 2", binary!(b"\x22\x11\x00\x0c"), Refused(V2Command, 12)),
    vector("v2 command 15", binary!(b"\x2f"), Refused(V2Command, 12)),
    vector("v2 family 4", binary!(b"\x21\x41\x00\x0c"), Refused(V2Family, 13)),
    vector("v2 family 15", binary!(b"\x21\xf1"), Refused(V2Family, 13)),
    vector("v2 protocol 3", binary!(b"\x21\x13\x00\x0c"), Refused(V2Transport, 13)),
    vector("v2 protocol 15, family unspecified", binary!(b"\x21\x0f\x00\x0c"), Refused(V2Transport, 13)),
    vector("v2 IPv4 in 11 bytes", binary!(b"\x21\x11\x00\x0b"), Refused(V2AddressTooShort, 14)),
    vector("v2 IPv6 in 35 bytes", binary!(b"\x21\x22\x00\x23"), Refused(V2AddressTooShort, 14)),
    vector("v2 UNIX in 215 bytes", binary!(b"\x21\x32\x00\xd7"), Refused(V2AddressTooShort, 14)),
    vector("v2 one byte above the limit", binary!(b"\x21\x11\x3f\xf1"), Refused(V2TooLong, 14)),
    vector("v2 longest of all", binary!(b"\x20\x00\xff\xff"), Refused(V2TooLong, 14)),
];
