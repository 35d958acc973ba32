//! Version 1 (PROXY 2.1).

use super::Expect::{Inet, NeedMore, Refused, Unspecified};
use super::{Vector, v4, v6, vector};
use crate::error::DecodeErrorKind::{NotProxy, V1Address, V1LineEnd, V1Port, V1Protocol, V1Space, V1TooLong};
use crate::header::Transport::Stream;

const ALL_ONES: [u16; 8] = [0xffff; 8];

/// Lines, whole, partial and wrong.
#[rustfmt::skip]
pub const V1: &[Vector] = &[
    // Accepted.
    vector("v1 the specification's example", b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n\r\n",
        Inet(Stream, v4([192, 168, 0, 1], 56324), v4([192, 168, 0, 11], 443), 47)),
    vector("v1 shortest TCP4", b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n", Inet(Stream, v4([0; 4], 0), v4([0; 4], 0), 32)),
    vector("v1 longest TCP4", b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
        Inet(Stream, v4([255; 4], 65535), v4([255; 4], 65535), 56)),
    vector("v1 shortest TCP6", b"PROXY TCP6 :: :: 0 0\r\n", Inet(Stream, v6([0; 8], 0), v6([0; 8], 0), 22)),
    vector("v1 longest TCP6", b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        Inet(Stream, v6(ALL_ONES, 65535), v6(ALL_ONES, 65535), 104)),
    vector("v1 TCP6 in upper case", b"PROXY TCP6 2001:DB8::A 2001:db8::b 1 2\r\n",
        Inet(Stream, v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 10], 1), v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 11], 2), 40)),
    vector("v1 TCP6 group of four with zeros", b"PROXY TCP6 2001:0db8::0001 ::1 1 2\r\n",
        Inet(Stream, v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1), v6([0, 0, 0, 0, 0, 0, 0, 1], 2), 36)),
    vector("v1 TCP6 mapped, as inet_ntop writes it", b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:c000:202 1 2\r\n",
        Inet(Stream, v6([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x201], 1), v6([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x202], 2), 49)),
    vector("v1 TCP6, and the destination is IPv4, as NGINX writes it", b"PROXY TCP6 2001:db8::7 10.71.0.1 4000 7000\r\n",
        Inet(Stream, v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7], 4000), v4([10, 71, 0, 1], 7000), 44)),
    vector("v1 TCP4, and the destination is IPv6, as NGINX writes it", b"PROXY TCP4 192.0.2.7 2001:db8::1 4000 7000\r\n",
        Inet(Stream, v4([192, 0, 2, 7], 4000), v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7000), 44)),
    vector("v1 TCP4, and the source is IPv6", b"PROXY TCP4 ::1 2.2.2.2 1 2\r\n",
        Inet(Stream, v6([0, 0, 0, 0, 0, 0, 0, 1], 1), v4([2; 4], 2), 28)),
    vector("v1 TCP6, and the source is IPv4", b"PROXY TCP6 2.2.2.2 ::1 1 2\r\n",
        Inet(Stream, v4([2; 4], 1), v6([0, 0, 0, 0, 0, 0, 0, 1], 2), 28)),
    vector("v1 shortest TCP4 with one of each", b"PROXY TCP4 :: 0.0.0.0 0 0\r\n", Inet(Stream, v6([0; 8], 0), v4([0; 4], 0), 27)),
    vector("v1 UNKNOWN, short", b"PROXY UNKNOWN\r\nSSH-2.0-", Unspecified(15)),
    vector("v1 UNKNOWN, worst case", b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        Unspecified(107)),
    vector("v1 UNKNOWN, anything before CRLF is ignored", b"PROXY UNKNOWN \x00\xff\n \r garbage\r\nrest", Unspecified(29)),
    vector("v1 UNKNOWN, more fields than a line has", b"PROXY UNKNOWN a b c d e f\r\n", Unspecified(27)),
    vector("v1 UNKNOWN, a space only", b"PROXY UNKNOWN \r\n", Unspecified(16)),

    // Incomplete: the shortest line that can still come says how much is missing.
    vector("nothing yet", b"", NeedMore(15)),
    vector("v1 one byte", b"P", NeedMore(14)),
    vector("v1 signature only", b"PROXY", NeedMore(10)),
    vector("v1 signature and space", b"PROXY ", NeedMore(9)),
    vector("v1 either TCP", b"PROXY TCP", NeedMore(13)),
    vector("v1 UNKN", b"PROXY UNKN", NeedMore(5)),
    vector("v1 TCP4 only", b"PROXY TCP4", NeedMore(17)),
    vector("v1 TCP6 only", b"PROXY TCP6 ", NeedMore(11)),
    vector("v1 UNKNOWN only", b"PROXY UNKNOWN", NeedMore(2)),
    vector("v1 CRLF split by a segment", b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r", NeedMore(1)),
    vector("v1 line without its end", b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443", NeedMore(2)),
    vector("v1 UNKNOWN split in CRLF", b"PROXY UNKNOWN\r", NeedMore(1)),

    // Not a header.
    vector("v1 lower case", b"proxy TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", Refused(NotProxy, 0)),
    vector("v1 mixed case", b"PROXy TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", Refused(NotProxy, 4)),
    vector("a POST request", b"POST / HTTP/1.1\r\n", Refused(NotProxy, 1)),
    vector("a space first", b" PROXY TCP4", Refused(NotProxy, 0)),

    // Protocol.
    vector("v1 no space after PROXY", b"PROXYTCP4 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Space, 5)),
    vector("v1 tab after PROXY", b"PROXY\tTCP4 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Space, 5)),
    vector("v1 two spaces after PROXY", b"PROXY  TCP4 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Protocol, 6)),
    vector("v1 protocol in lower case", b"PROXY tcp4 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Protocol, 6)),
    vector("v1 TCP5", b"PROXY TCP5 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Protocol, 9)),
    vector("v1 UDP4", b"PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Protocol, 7)),
    vector("v1 TCP46", b"PROXY TCP46 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Space, 10)),
    vector("v1 TCP4 and nothing else", b"PROXY TCP4\r\n", Refused(V1Space, 10)),
    vector("v1 UNKNOWNX", b"PROXY UNKNOWNX\r\n", Refused(V1Space, 13)),

    // Addresses.
    vector("v1 leading zero in an octet", b"PROXY TCP4 192.168.00.1 192.168.0.11 56324 443\r\n", Refused(V1Address, 11)),
    vector("v1 octal octet", b"PROXY TCP4 1.1.1.1 010.0.0.1 56324 443\r\n", Refused(V1Address, 19)),
    vector("v1 octet above 255", b"PROXY TCP4 1.1.1.1 1.1.1.256 1 2\r\n", Refused(V1Address, 19)),
    vector("v1 three octets", b"PROXY TCP4 1.1.1 2.2.2.2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 five octets", b"PROXY TCP4 1.1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP4 with two IPv6 addresses", b"PROXY TCP4 ::1 ::2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP6 with two IPv4 addresses", b"PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP6 with brackets", b"PROXY TCP6 [::1] ::2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP6 two double colons", b"PROXY TCP6 1::2::3 ::2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP6 five digits", b"PROXY TCP6 00001:: ::2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP6 seven groups", b"PROXY TCP6 1:2:3:4:5:6:7 ::2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 TCP6 nine groups", b"PROXY TCP6 1:2:3:4:5:6:7:8:9 ::2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 host name", b"PROXY TCP4 localhost 2.2.2.2 1 2\r\n", Refused(V1Address, 11)),
    vector("v1 NUL in an address, before the line is complete", b"PROXY TCP4 1.1.\x00", Refused(V1Address, 15)),

    // Ports.
    vector("v1 port 65536", b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n", Refused(V1Port, 27)),
    vector("v1 port with a leading zero", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 080\r\n", Refused(V1Port, 29)),
    vector("v1 port 00", b"PROXY TCP4 1.1.1.1 2.2.2.2 00 80\r\n", Refused(V1Port, 27)),
    vector("v1 port with a sign", b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 80\r\n", Refused(V1Port, 27)),
    vector("v1 negative port", b"PROXY TCP6 ::1 ::2 1 -1\r\n", Refused(V1Port, 21)),
    vector("v1 port in hexadecimal", b"PROXY TCP6 ::1 ::2 1 ff\r\n", Refused(V1Port, 21)),

    // Fields.
    vector("v1 two spaces between addresses", b"PROXY TCP4 1.1.1.1  2.2.2.2 1 2\r\n", Refused(V1Space, 19)),
    vector("v1 two spaces before the first address", b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n", Refused(V1Space, 11)),
    vector("v1 space at the end", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 \r\n", Refused(V1Space, 30)),
    vector("v1 one port", b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n", Refused(V1Space, 28)),
    vector("v1 no ports", b"PROXY TCP4 1.1.1.1 2.2.2.2\r\n", Refused(V1Space, 26)),
    vector("v1 three ports", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n", Refused(V1Space, 30)),

    // Line ends.
    vector("v1 LF alone", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\nGET / HTTP/1.1\r\n", Refused(V1LineEnd, 30)),
    vector("v1 CR alone", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\rGET / HTTP/1.1\r\n", Refused(V1LineEnd, 31)),
    vector("v1 LF CR", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n\r", Refused(V1LineEnd, 30)),
    vector("v1 CR CR LF", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\r\n", Refused(V1LineEnd, 31)),
    vector("v1 UNKNOWN, LF alone", b"PROXY UNKNOWN\n", Refused(V1LineEnd, 13)),
    vector("v1 UNKNOWN, CR alone", b"PROXY UNKNOWN\rX\r\n", Refused(V1LineEnd, 14)),

    // Length.
    vector("v1 TCP4 without an end", b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535000000000000000000000000000000000000000000000000000000",
        Refused(V1TooLong, 105)),
    vector("v1 TCP4 too long, and a foreign byte after that", b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535000000000000000000000000000000000000000000000000000000\xff",
        Refused(V1TooLong, 105)),
    vector("v1 TCP6 without an end", b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        Refused(V1TooLong, 105)),
    vector("v1 UNKNOWN of 108 bytes", b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535 \r\n",
        Refused(V1TooLong, 105)),
    vector("v1 UNKNOWN whose last CR comes too late for its LF", b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\r\n",
        Refused(V1TooLong, 106)),
];
