//! Guesses the protocol of bytes that are not a PROXY header, for error messages only. A receiver "MUST not
//! try to guess" (PROXY 2), so no decision depends on it.

/// A first few bytes and the protocol they belong to.
const FIRST_BYTES: &[(&[u8], &str)] = &[
    (b"\x16\x03", "TLS (ClientHello)"),
    (b"PRI * HTTP/2.0", "HTTP/2 preface"),
    (b"HTTP/", "HTTP response"),
    (b"SSH-", "SSH banner"),
    (&crate::spp::MAGIC, "SPP (Simple Proxy Protocol)"),
    (b"proxy ", "PROXY header in lower case"),
    (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "PostgreSQL (SSLRequest)"),
    (b"\x03\x00\x00", "RDP"),
    (b"EHLO ", "SMTP"),
    (b"HELO ", "SMTP"),
    (b"\x05\x01\x00", "SOCKS 5"),
    (b"*1\r\n$", "Redis"),
    (b"*2\r\n$", "Redis"),
];

const HTTP_METHODS: &[&[u8]] =
    &[b"GET ", b"POST ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ", b"TRACE "];

/// Names the protocol that `bytes` seem to belong to, if it is a well-known one.
pub fn sniff(bytes: &[u8]) -> Option<&'static str> {
    if HTTP_METHODS.iter().any(|method| bytes.starts_with(method)) {
        return Some("HTTP request");
    }
    if bytes.len() >= 8 && bytes[4..8] == [0, 3, 0, 0] && bytes[0] == 0 {
        return Some("PostgreSQL (startup)");
    }
    FIRST_BYTES.iter().find(|(first, _)| bytes.starts_with(first)).map(|(_, name)| *name)
}
