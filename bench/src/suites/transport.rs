//! What carries a load.

/// What a load is carried by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    /// TCP with TLS and HTTP/1.1 in it, on both sides of a contestant, and no PROXY header.
    Https,
    /// The same, on a network stack that is the contestant's.
    Stacked,
}
