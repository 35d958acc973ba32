//! The transport of a load.

/// The transport of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    /// TCP with TLS and HTTP/1.1 on both sides of a contestant, without a PROXY header.
    Https,
    /// The same, on the contestant's network stack.
    Stacked,
}
