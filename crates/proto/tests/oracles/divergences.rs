//! Where an oracle is known to differ from us: what it does, what the specification says, and the vectors
//! that show it. A row that no longer holds fails the test as a new one would.

/// One way in which an oracle differs.
pub(crate) struct Divergence {
    pub(crate) oracle: &'static str,
    #[allow(dead_code, reason = "for the reader")]
    pub(crate) does: &'static str,
    #[allow(dead_code, reason = "for the reader")]
    pub(crate) rule: &'static str,
    pub(crate) vectors: &'static [&'static str],
}

/// Lines with addresses of two families.
const TWO_FAMILIES: &[&str] = &[
    "v1 TCP6, and the destination is IPv4, as NGINX writes it",
    "v1 TCP4, and the destination is IPv6, as NGINX writes it",
    "v1 TCP4, and the source is IPv6",
    "v1 TCP6, and the source is IPv4",
    "v1 shortest TCP4 with one of each",
];

pub(crate) const DIVERGENCES: &[Divergence] = &[
    Divergence {
        oracle: "ppp",
        does: "refuses addresses of two families",
        rule: "PROXY 2.1 has none, but NGINX writes them",
        vectors: TWO_FAMILIES,
    },
    Divergence {
        oracle: "proxy-header",
        does: "refuses addresses of two families",
        rule: "PROXY 2.1 has none, but NGINX writes them",
        vectors: TWO_FAMILIES,
    },
    Divergence {
        oracle: "proxy-protocol-rs",
        does: "refuses addresses of two families",
        rule: "PROXY 2.1 has none, but NGINX writes them",
        vectors: TWO_FAMILIES,
    },
    Divergence {
        oracle: "ppp",
        does: "waits for ever after UNKNOWN and more than four fields",
        rule: "PROXY 2.1: \"must ignore anything presented before the CRLF\"",
        vectors: &["v1 UNKNOWN, more fields than a line has"],
    },
    Divergence {
        oracle: "ppp",
        does: "does not verify the checksum",
        rule: "PROXY 2.2.3: \"the receiver MUST ... verify\", where the function is supported",
        vectors: &[
            "tlv CRC32C wrong by a bit",
            "tlv CRC32C of another client",
            "tlv CRC32C in little endian",
            "tlv CRC32C wrong in LOCAL",
            "tlv CRC32C of 3 bytes",
            "tlv CRC32C without a value, at the very end",
            "tlv CRC32C twice",
        ],
    },
    Divergence {
        oracle: "ppp",
        does: "looks at extensions only when asked",
        rule: "PROXY 2.2: what it would refuse then, we refuse at once",
        vectors: &[
            "tlv UNIQUE_ID of 129 bytes",
            "tlv longer than the header",
            "tlv of the greatest length",
            "tlv that would end in the data",
            "tlv cut in its length",
            "tlv and one byte more",
            "tlv SSL of 4 bytes",
            "tlv SSL with a sub-TLV that is too long",
        ],
    },
    Divergence {
        oracle: "ppp",
        does: "demands text after UNKNOWN",
        rule: "PROXY 2.1: \"must ignore anything presented before the CRLF\"",
        vectors: &["v1 UNKNOWN, anything before CRLF is ignored"],
    },
    Divergence {
        oracle: "ppp",
        does: "accepts a sign before a port",
        rule: "PROXY 2.1: a decimal integer",
        vectors: &["v1 port with a sign"],
    },
    Divergence {
        oracle: "ppp",
        does: "looks at LOCAL's family",
        rule: "PROXY 2.2: \"the family which is ignored\"",
        vectors: &[
            "v2 LOCAL with unassigned family and protocol",
            "go-mmproxy: LOCAL with a family and a short block",
            "v2 LOCAL with a short block, part of which looks like a wrong CRC32C",
        ],
    },
    Divergence {
        oracle: "ppp",
        does: "demands addresses of an unspecified protocol",
        rule: "PROXY 2.2: \"should ignore address information\"",
        vectors: &["v2 IPv4 over an unspecified protocol"],
    },
    Divergence {
        oracle: "proxy-header",
        does: "does not verify the checksum",
        rule: "PROXY 2.2.3: \"the receiver MUST ... verify\", where the function is supported",
        vectors: &[
            "tlv CRC32C wrong by a bit",
            "tlv CRC32C of another client",
            "tlv CRC32C in little endian",
            "tlv CRC32C wrong in LOCAL",
            "tlv CRC32C of 3 bytes",
            "tlv CRC32C without a value, at the very end",
            "tlv CRC32C twice",
        ],
    },
    Divergence {
        oracle: "proxy-header",
        does: "looks at extensions only when asked",
        rule: "PROXY 2.2: what it would refuse then, we refuse at once",
        vectors: &[
            "tlv UNIQUE_ID of 129 bytes",
            "tlv longer than the header",
            "tlv of the greatest length",
            "tlv that would end in the data",
            "tlv cut in its length",
            "tlv and one byte more",
            "tlv SSL of 4 bytes",
            "tlv SSL with a sub-TLV that is too long",
        ],
    },
    Divergence {
        oracle: "proxy-header",
        does: "demands text after UNKNOWN",
        rule: "PROXY 2.1: \"must ignore anything presented before the CRLF\"",
        vectors: &["v1 UNKNOWN, anything before CRLF is ignored"],
    },
    Divergence {
        oracle: "proxy-header",
        does: "accepts leading zeros and a sign in ports",
        rule: "PROXY 2.1: \"Heading zeroes are not permitted\"",
        vectors: &[
            "v1 port with a leading zero",
            "v1 port 00",
            "v1 port with a sign",
            "go-mmproxy: leading zeros accepted",
            "HAProxy: leading zeros accepted",
        ],
    },
    Divergence {
        oracle: "proxy-header",
        does: "accepts any byte for the space after PROXY",
        rule: "PROXY 2.1: \"exactly one space\"",
        vectors: &["v1 tab after PROXY"],
    },
    Divergence {
        oracle: "proxy-header",
        does: "accepts more letters after UNKNOWN",
        rule: "PROXY 2.1: the name matches exactly",
        vectors: &["v1 UNKNOWNX"],
    },
    Divergence {
        oracle: "proxy-header",
        does: "limits an incomplete line only",
        rule: "PROXY 2.1: CRLF \"in the first 107 characters\"",
        vectors: &["v1 UNKNOWN of 108 bytes"],
    },
    Divergence {
        oracle: "proxy-header",
        does: "looks at LOCAL's family",
        rule: "PROXY 2.2: \"the family which is ignored\"",
        vectors: &[
            "v2 LOCAL with unassigned family and protocol",
            "go-mmproxy: LOCAL with a family and a short block",
            "v2 LOCAL with a short block, part of which looks like a wrong CRC32C",
        ],
    },
    Divergence {
        oracle: "proxy-header",
        does: "refuses UNSPEC in only one of the two",
        rule: "PROXY 2.2: each of them is a valid value",
        vectors: &["v2 IPv4 over an unspecified protocol", "v2 TCP over an unspecified family"],
    },
    Divergence {
        oracle: "proxy-protocol-rs",
        does: "demands text after UNKNOWN",
        rule: "PROXY 2.1: \"must ignore anything presented before the CRLF\"",
        vectors: &["v1 UNKNOWN, anything before CRLF is ignored"],
    },
    Divergence {
        oracle: "proxy-protocol-rs",
        does: "accepts leading zeros and a sign in ports",
        rule: "PROXY 2.1: \"Heading zeroes are not permitted\"",
        vectors: &[
            "v1 port with a leading zero",
            "v1 port 00",
            "v1 port with a sign",
            "go-mmproxy: leading zeros accepted",
            "HAProxy: leading zeros accepted",
        ],
    },
    Divergence {
        oracle: "proxy-protocol-rs",
        does: "refuses PROXY with UNSPEC",
        rule: "PROXY 2.2: \"the receiver is free to ... reject\"; we accept",
        vectors: &[
            "v2 UNSPEC",
            "v2 UNSPEC with addresses",
            "v2 IPv4 over an unspecified protocol",
            "v2 TCP over an unspecified family",
            "tlv CRC32C in UNSPEC",
        ],
    },
];
