//! Extensions (PROXY 2.2, 2.2.1 to 2.2.8). The checksums were computed apart from this crate, bit by bit.

use core::net::SocketAddr;

use super::Expect::{self, Inet, Local, Refused, Unspecified};
use super::{Vector, binary, v4, vector};
use crate::error::DecodeErrorKind::{
    Crc32cLength, Crc32cMismatch, Crc32cTwice, SslOverrun, SslTooShort, TlvOverrun, UniqueIdTooLong,
};
use crate::header::Transport::Stream;

const CLIENT: SocketAddr = v4([192, 0, 2, 1], 56324);
const DESTINATION: SocketAddr = v4([198, 51, 100, 2], 443);

const fn accepted(len: usize) -> Expect {
    Inet(Stream, CLIENT, DESTINATION, len)
}

/// 28 bytes of header, UNIQUE_ID of `LEN` zeros.
const fn unique_id<const N: usize>() -> [u8; N] {
    let mut whole = [0; N];
    let start: [u8; 28] = super::signed(b"\x21\x11\x00\x00\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb");
    let mut at = 0;
    while at < start.len() {
        whole[at] = start[at];
        at += 1;
    }
    let id_len = N - start.len() - 3;
    assert!(id_len + 15 < 256, "the low byte holds the length");
    whole[15] = (id_len + 15).to_le_bytes()[0];
    whole[28] = 0x05;
    whole[30] = id_len.to_le_bytes()[0];
    whole
}

/// Headers with extensions, right and wrong.
#[rustfmt::skip]
pub const TLV: &[Vector] = &[
    vector("tlv ALPN", binary!(b"\x21\x11\x00\x11\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x01\x00\x02h2rest"), accepted(33)),
    vector("tlv NOOP without a value", binary!(b"\x21\x11\x00\x0f\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x04\x00\x00"), accepted(31)),
    vector("tlv unassigned types", binary!(b"\x21\x11\x00\x15\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x00\x00\x00\x77\x00\x00\xff\x00\x00"), accepted(37)),
    vector("tlv UNIQUE_ID of 128 bytes", &unique_id::<159>(), accepted(159)),
    vector("tlv UNIQUE_ID of 129 bytes", &unique_id::<160>(), Refused(UniqueIdTooLong, 28)),

    // The checksum, over the whole header.
    vector("tlv CRC32C", binary!(b"\x21\x11\x00\x13\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x04\x20\xec\x95\x49rest"), accepted(35)),
    vector("tlv CRC32C between others", binary!(b"\x21\x11\x00\x1b\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x01\x00\x02\x68\x32\x03\x00\x04\xfa\xa7\x67\xf2\x04\x00\x00"), accepted(43)),
    vector("tlv CRC32C in LOCAL", binary!(b"\x20\x00\x00\x07\x03\x00\x04\xa9\xb8\x7e\x8f"), Local(23)),
    vector("tlv CRC32C in UNSPEC", binary!(b"\x21\x00\x00\x07\x03\x00\x04\x3e\xc9\x89\x4e"), Unspecified(23)),
    vector("tlv CRC32C wrong by a bit", binary!(b"\x21\x11\x00\x13\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x04\x20\xec\x95\x48"), Refused(Crc32cMismatch, 31)),
    vector("tlv CRC32C of another client", binary!(b"\x21\x11\x00\x13\xc0\x00\x02\x02\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x04\x20\xec\x95\x49"), Refused(Crc32cMismatch, 31)),
    vector("tlv CRC32C in little endian", binary!(b"\x21\x11\x00\x13\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x04\x49\x95\xec\x20"), Refused(Crc32cMismatch, 31)),
    vector("tlv CRC32C wrong in LOCAL", binary!(b"\x20\x00\x00\x07\x03\x00\x04\xa9\xb8\x7e\x8e"), Refused(Crc32cMismatch, 19)),
    vector("tlv CRC32C of 3 bytes", binary!(b"\x21\x11\x00\x12\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x03\x20\xec\x95"), Refused(Crc32cLength, 28)),
    vector("tlv CRC32C without a value, at the very end", binary!(b"\x21\x11\x00\x0f\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x00"), Refused(Crc32cLength, 28)),
    vector("tlv CRC32C twice", binary!(b"\x21\x11\x00\x1a\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x03\x00\x04\0\0\0\0\x03\x00\x04\0\0\0\0"), Refused(Crc32cTwice, 35)),

    // Overrun.
    vector("tlv longer than the header", binary!(b"\x21\x11\x00\x10\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x01\x00\x02h"), Refused(TlvOverrun, 28)),
    vector("tlv of the greatest length", binary!(b"\x21\x11\x00\x10\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x01\xff\xffh"), Refused(TlvOverrun, 28)),
    vector("tlv that would end in the data", binary!(b"\x21\x11\x00\x0f\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x01\x00\x02h2"), Refused(TlvOverrun, 28)),
    vector("tlv cut in its length", binary!(b"\x21\x11\x00\x0e\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x04\x00"), Refused(TlvOverrun, 28)),
    vector("tlv and one byte more", binary!(b"\x21\x11\x00\x10\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x04\x00\x00\x00"), Refused(TlvOverrun, 31)),
    vector("tlv overrun in LOCAL is no TLV", binary!(b"\x20\x00\x00\x04\x01\x00\x02h"), Local(20)),

    // SSL.
    vector("tlv SSL with version and cipher", binary!(b"\x21\x11\x00\x25\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x20\x00\x16\x01\0\0\0\0\x21\x00\x07TLSv1.3\x23\x00\x04AESG"), accepted(53)),
    vector("tlv SSL without sub-TLVs", binary!(b"\x21\x11\x00\x14\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x20\x00\x05\x00\0\0\0\x01"), accepted(36)),
    vector("tlv SSL of 4 bytes", binary!(b"\x21\x11\x00\x13\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x20\x00\x04\x01\0\0\0"), Refused(SslTooShort, 28)),
    vector("tlv SSL with a sub-TLV that is too long", binary!(b"\x21\x11\x00\x18\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x20\x00\x09\x01\0\0\0\0\x21\x00\x07T"), Refused(SslOverrun, 36)),

    // Vendors' types in another form than the vendor's are somebody else's.
    vector("tlv vendor types with odd values", binary!(b"\x21\x11\x00\x1a\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\xea\x00\x00\xe0\x00\x01\x00\xee\x00\x01\x01\xe1\x00\x00"), accepted(42)),
];
