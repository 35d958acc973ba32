//! The contents of a header, whichever version carried it.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::tlv::Tlvs;

/// The bytes that open a version 2 header (PROXY 2.2).
pub const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The part of a version 2 header that is always there: signature, version and command, family and
/// protocol, length (PROXY 2.2).
pub const V2_FIXED_LEN: usize = 16;

/// Which encoding carried the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The human-readable line (PROXY 2.1).
    V1,
    /// The binary header (PROXY 2.2).
    V2,
}

/// Whether the connection was made on somebody's behalf (PROXY 2.2, lowest four bits of byte 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The sender speaks for itself (a health check): its own address is the true one.
    Local,
    /// The sender relays for the client named in [`Header::addresses`].
    Proxy,
}

/// The transport between client and sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP, or a UNIX stream socket.
    Stream,
    /// UDP, or a UNIX datagram socket.
    Dgram,
}

/// The two ends of the connection that the client made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses<'a> {
    /// v1 `UNKNOWN`, v2 `UNSPEC`, or a valid combination that truepeer does not deliver: the receiver
    /// uses the connection's own addresses (PROXY 2.2).
    Unspecified,
    /// IPv4 or IPv6; both ends have the same family.
    Inet {
        /// How the client connected.
        transport: Transport,
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// AF_UNIX: valid, but a network backend can't be shown it. Both paths are 108 bytes, NUL padded.
    Unix {
        /// How the client connected.
        transport: Transport,
        /// The client's path.
        source: &'a [u8; 108],
        /// The path that the client connected to.
        destination: &'a [u8; 108],
    },
}

/// One decoded header; its extensions borrow from the bytes it was decoded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Which encoding carried it.
    pub version: Version,
    /// LOCAL or PROXY; v1 has no LOCAL, so it is always `Proxy` there.
    pub command: Command,
    /// The client's connection.
    pub addresses: Addresses<'a>,
    /// The v2 extensions, still encoded; empty for v1.
    pub tlvs: Tlvs<'a>,
    /// All of it as received. Empty if it was not decoded from a PROXY header (SPP).
    pub bytes: &'a [u8],
}

impl Header<'_> {
    /// The client, if the header names one that a network backend can be shown.
    pub const fn client(&self) -> Option<SocketAddr> {
        match self.addresses {
            Addresses::Inet { source, .. } => Some(source),
            Addresses::Unspecified | Addresses::Unix { .. } => None,
        }
    }

    /// The address that the client connected to, on the same terms.
    pub const fn destination(&self) -> Option<SocketAddr> {
        match self.addresses {
            Addresses::Inet { destination, .. } => Some(destination),
            Addresses::Unspecified | Addresses::Unix { .. } => None,
        }
    }
}

/// What the bytes received so far are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// Valid so far, not complete.
    NeedMore {
        /// At least this many bytes of header are still to come (1 or more; never beyond the header's end).
        missing: usize,
    },
    /// A complete header.
    Done {
        /// Its contents.
        header: Header<'a>,
        /// How many bytes it took; the application's data starts there.
        consumed: usize,
    },
}

/// The same addresses in one family, as a header needs them: IPv4 if both are IPv4 (an IPv6 socket may
/// connect to `::ffff:`), otherwise IPv6, in which an IPv4 address is `::ffff:a.b.c.d`.
pub fn in_one_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let (source, destination) = (canonical(source), canonical(destination));
    if source.is_ipv4() == destination.is_ipv4() {
        return (source, destination);
    }
    (as_ipv6(source), as_ipv6(destination))
}

fn as_ipv6(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) => SocketAddrV6::new(ip.to_ipv6_mapped(), addr.port(), 0, 0).into(),
        IpAddr::V6(_) => addr,
    }
}
