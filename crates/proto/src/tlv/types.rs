//! The registered types, by their names in the specification without `PP2_TYPE_` (PROXY 2.2).

/// Application protocol (PROXY 2.2.1).
pub const ALPN: u8 = 0x01;
/// Host name (PROXY 2.2.2).
pub const AUTHORITY: u8 = 0x02;
/// Checksum of the header (PROXY 2.2.3).
pub const CRC32C: u8 = 0x03;
/// Padding (PROXY 2.2.4).
pub const NOOP: u8 = 0x04;
/// Id of the connection (PROXY 2.2.5).
pub const UNIQUE_ID: u8 = 0x05;
/// TLS between client and sender (PROXY 2.2.6).
pub const SSL: u8 = 0x20;
/// Sub-type of SSL: TLS version.
pub const SSL_VERSION: u8 = 0x21;
/// Sub-type of SSL: Common Name of the client's certificate.
pub const SSL_CN: u8 = 0x22;
/// Sub-type of SSL: cipher.
pub const SSL_CIPHER: u8 = 0x23;
/// Sub-type of SSL: what signed the sender's certificate.
pub const SSL_SIG_ALG: u8 = 0x24;
/// Sub-type of SSL: key of the sender's certificate.
pub const SSL_KEY_ALG: u8 = 0x25;
/// Sub-type of SSL: key exchange (since 2025/09/09).
pub const SSL_GROUP: u8 = 0x26;
/// Sub-type of SSL: handshake signature (since 2025/09/09).
pub const SSL_SIG_SCHEME: u8 = 0x27;
/// Sub-type of SSL: the client's certificate in DER (since 2026/01/15).
pub const SSL_CLIENT_CERT: u8 = 0x28;
/// Name of the network namespace (PROXY 2.2.7).
pub const NETNS: u8 = 0x30;
/// Google Cloud: Private Service Connect.
pub const GCP: u8 = 0xE0;
/// Alibaba Cloud: PrivateLink.
pub const ALIBABA: u8 = 0xE1;
/// Amazon Web Services: PrivateLink.
pub const AWS: u8 = 0xEA;
/// Microsoft Azure: Private Link.
pub const AZURE: u8 = 0xEE;
