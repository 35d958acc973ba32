//! IP packets: headers, checksums, fragments, extension headers.

use std::net::{IpAddr, SocketAddr};

use super::sum;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// IPv6's fragment header (RFC 8200, 4.5).
const FRAGMENT: u8 = 44;
const V4_FIXED: usize = 20;
const V6_FIXED: usize = 40;

/// An IP packet, from the IP header on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    bytes: Vec<u8>,
}

impl Packet {
    /// Creates a packet with a header of its addresses' version, which must be the same. The IPv4 header
    /// checksum is valid.
    pub fn new(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Packet {
        let mut bytes = Vec::with_capacity(V6_FIXED + payload.len());
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let len = u16::try_from(V4_FIXED + payload.len()).unwrap_or(u16::MAX);
                bytes.extend([0x45, 0]);
                bytes.extend(len.to_be_bytes());
                bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]); // don't fragment; time to live 64
                bytes.extend(from.octets());
                bytes.extend(to.octets());
            }
            (from, to) => {
                let mapped = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend(len.to_be_bytes());
                bytes.extend([protocol, 64]);
                bytes.extend(mapped(from).octets());
                bytes.extend(mapped(to).octets());
            }
        }
        bytes.extend(payload);
        Packet { bytes }.with_right_ip_sum()
    }

    /// A packet from these bytes.
    pub fn of(bytes: &[u8]) -> Packet {
        Packet { bytes: bytes.to_vec() }
    }

    /// Its bytes, from the IP header on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it is an IPv6 packet.
    pub fn is_ipv6(&self) -> bool {
        self.bytes.first().is_some_and(|byte| byte >> 4 == 6)
    }

    /// The offset of the end of the IP header; extension headers come after it.
    pub fn payload_at(&self) -> usize {
        if self.is_ipv6() { V6_FIXED } else { usize::from(self.bytes[0] & 0x0f) * 4 }
    }

    /// Flips bits of the byte at this offset.
    pub fn flip(mut self, at: usize, bits: u8) -> Packet {
        self.bytes[at] ^= bits;
        self
    }

    /// Overwrites the bytes at this offset.
    pub fn write(mut self, at: usize, bytes: &[u8]) -> Packet {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Cuts the packet off at this offset. The IP header keeps the old length.
    pub fn cut(mut self, at: usize) -> Packet {
        self.bytes.truncate(at);
        self
    }

    /// Makes the TCP or UDP checksum wrong.
    pub fn with_wrong_sum(self) -> Packet {
        let at = self.payload_at() + if self.protocol() == UDP { 6 } else { 16 };
        self.flip(at, 0x55)
    }

    /// Makes the IPv4 header checksum wrong; IPv6 has none.
    pub fn with_wrong_ip_sum(self) -> Packet {
        if self.is_ipv6() { self } else { self.flip(10, 0x55) }
    }

    /// Recomputes the IPv4 header checksum after a change.
    pub fn with_right_ip_sum(mut self) -> Packet {
        if !self.is_ipv6() {
            let end = self.payload_at().max(V4_FIXED).min(self.bytes.len());
            self.bytes[10..12].fill(0);
            let sum = sum::of(&self.bytes[..end]);
            self.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        self
    }

    /// Adds options (whole words) to the IPv4 header.
    pub fn with_ip_options(mut self, options: &[u8]) -> Packet {
        assert!(!self.is_ipv6() && options.len().is_multiple_of(4), "options of IPv4, in whole words");
        self.bytes.splice(V4_FIXED..V4_FIXED, options.iter().copied());
        self.bytes[0] += u8::try_from(options.len() / 4).unwrap_or_default();
        let len = u16::try_from(self.bytes.len()).unwrap_or(u16::MAX);
        self.write(2, &len.to_be_bytes()).with_right_ip_sum()
    }

    /// Adds IPv6 extension headers of these kinds, 8 bytes each: options with padding, or a routing header
    /// without segments left.
    pub fn behind(mut self, kinds: &[u8]) -> Packet {
        assert!(self.is_ipv6(), "extension headers are IPv6's");
        for kind in kinds.iter().rev() {
            let next = std::mem::replace(&mut self.bytes[6], *kind);
            let extension = match *kind {
                FRAGMENT => [next, 0, 0, 0, 0, 0, 0, 1],
                43 => [next, 0, 4, 0, 0, 0, 0, 0],
                _ => [next, 0, 1, 4, 0, 0, 0, 0],
            };
            self.bytes.splice(V6_FIXED..V6_FIXED, extension);
        }
        let len = u16::try_from(self.bytes.len() - V6_FIXED).unwrap_or(u16::MAX);
        self.write(4, &len.to_be_bytes())
    }

    /// Splits it into fragments. All but the last carry this many bytes (a multiple of 8).
    pub fn fragments(&self, len: usize, id: u16) -> Vec<Packet> {
        let payload = &self.bytes[self.payload_at()..];
        let count = payload.len().div_ceil(len);
        let fragment = |(n, part): (usize, &[u8])| {
            let offset = u16::try_from(n * len / 8).unwrap_or(u16::MAX);
            self.fragment(part, offset, n + 1 < count, id)
        };
        payload.chunks(len).enumerate().map(fragment).collect()
    }

    fn fragment(&self, part: &[u8], offset: u16, more: bool, id: u16) -> Packet {
        let mut bytes = self.bytes[..self.payload_at()].to_vec();
        if self.is_ipv6() {
            let next = std::mem::replace(&mut bytes[6], FRAGMENT);
            bytes.extend([next, 0]);
            bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(id.to_be_bytes());
            bytes.extend(part);
            let len = u16::try_from(bytes.len() - V6_FIXED).unwrap_or(u16::MAX);
            return Packet { bytes }.write(4, &len.to_be_bytes());
        }
        bytes.extend(part);
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let place = offset | if more { 0x2000 } else { 0 };
        Packet { bytes }
            .write(2, &len.to_be_bytes())
            .write(4, &id.to_be_bytes())
            .write(6, &place.to_be_bytes())
            .with_right_ip_sum()
    }

    /// The ICMP error that goes back where it came from: nobody serves its port.
    ///
    /// # Panics
    /// If the packet has no addresses.
    pub fn unreachable(&self) -> Packet {
        let (_, to, _) = read(&self.bytes, self.protocol()).expect("a whole packet");
        let (kind, code) = if self.is_ipv6() { (1, 4) } else { (3, 3) };
        self.error(to, kind, code, 0)
    }

    /// The ICMP error about this packet, as the host `by` sends it. `rest`: the last four bytes of the ICMP
    /// header.
    ///
    /// # Panics
    /// If the packet has no addresses.
    pub fn error(&self, by: IpAddr, kind: u8, code: u8, rest: u32) -> Packet {
        let (from, _, _) = read(&self.bytes, self.protocol()).expect("a whole packet");
        let protocol = if self.is_ipv6() { ICMPV6 } else { ICMP };
        let quoted = &self.bytes[..self.bytes.len().min(500)];
        let mut message = [&[kind, code, 0, 0], rest.to_be_bytes().as_slice(), quoted].concat();
        let sum = sum_over(by, from, protocol, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        Packet::new(by, from, protocol, &message)
    }

    /// The content of an ICMP error: type, code, the rest of its header, and as much of the quoted packet as
    /// it has.
    pub fn as_error(&self) -> Option<(u8, u8, u32, &[u8])> {
        let protocol = if self.is_ipv6() { ICMPV6 } else { ICMP };
        let (_, _, message) = read(&self.bytes, protocol)?;
        let rest = u32::from_be_bytes(message.get(4..8)?.try_into().ok()?);
        Some((message[0], message[1], rest, &message[8..]))
    }

    /// Its addresses: source and destination.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        read(&self.bytes, self.protocol()).map(|(from, to, _)| (from, to))
    }

    /// Whether a kernel would accept its checksums: the IPv4 header's, and that of TCP, UDP or ICMP.
    pub fn has_right_sums(&self) -> bool {
        let header = if self.is_ipv6() { &[] } else { &self.bytes[..self.payload_at()] };
        let Some((from, to, transport)) = read(&self.bytes, self.protocol()) else { return false };
        (header.is_empty() || sum::of(header) == 0) && sum_over(from, to, self.protocol(), transport) == 0
    }

    fn protocol(&self) -> u8 {
        if self.is_ipv6() { self.bytes[6] } else { self.bytes[9] }
    }
}

/// ICMP of IPv4 has no pseudo-header.
fn sum_over(from: IpAddr, to: IpAddr, protocol: u8, message: &[u8]) -> u16 {
    if protocol == ICMP { sum::of(message) } else { sum::of_transport(from, to, protocol, message) }
}

/// The addresses and the payload of an IP packet of this protocol.
pub(super) fn read(packet: &[u8], protocol: u8) -> Option<(IpAddr, IpAddr, &[u8])> {
    let len = |at: usize| Some(usize::from(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?)));
    match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&protocol) => {
            let ip = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
            let payload = packet.get(usize::from(packet[0] & 0x0f) * 4..len(2)?)?;
            Some((ip(12)?, ip(16)?, payload))
        }
        6 if packet.get(6) == Some(&protocol) => {
            let ip = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
            Some((ip(8)?, ip(24)?, packet.get(V6_FIXED..V6_FIXED + len(4)?)?))
        }
        _ => None,
    }
}

/// A UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Its source.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Datagram {
    /// As an IP packet with valid checksums.
    pub fn packet(&self) -> Packet {
        let len = u16::try_from(8 + self.payload.len()).unwrap_or(u16::MAX);
        let ports = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        let mut bytes = [&ports, len.to_be_bytes().as_slice(), &[0, 0], &self.payload].concat();
        let sum = sum::of_transport(self.from.ip(), self.to.ip(), UDP, &bytes);
        // RFC 768: 0 would mean that there is no checksum.
        bytes[6..8].copy_from_slice(&if sum == 0 { u16::MAX } else { sum }.to_be_bytes());
        Packet::new(self.from.ip(), self.to.ip(), UDP, &bytes)
    }

    /// Reads one from an IP packet without extension headers. Checksums are ignored.
    pub fn parse(packet: &[u8]) -> Option<Datagram> {
        let (from, to, udp) = read(packet, UDP)?;
        let short = |at: usize| Some(u16::from_be_bytes(udp.get(at..at + 2)?.try_into().ok()?));
        Some(Datagram {
            from: SocketAddr::new(from, short(0)?),
            to: SocketAddr::new(to, short(2)?),
            payload: udp.get(8..usize::from(short(4)?))?.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(from: &str, to: &str) -> Datagram {
        Datagram {
            from: from.parse().expect("from"),
            to: to.parse().expect("to"),
            payload: (0..100).collect(),
        }
    }

    #[test]
    fn fragments_carry_everything_once() {
        for datagram in [datagram("10.0.0.1:1", "10.0.0.2:53"), datagram("[fd77::1]:1", "[fd77::2]:53")] {
            let packet = datagram.packet();
            assert!(packet.has_right_sums());
            assert_eq!(Datagram::parse(packet.bytes()).as_ref(), Some(&datagram));
            let head = packet.payload_at() + if packet.is_ipv6() { 8 } else { 0 };
            let parts = packet.fragments(40, 7);
            let joined: Vec<u8> = parts.iter().flat_map(|part| &part.bytes()[head..]).copied().collect();
            assert_eq!((parts.len(), joined.as_slice()), (3, &packet.bytes()[packet.payload_at()..]));
        }
    }

    #[test]
    fn options_and_extension_headers_stand_before_the_transport() {
        let packet = datagram("10.0.0.1:1", "10.0.0.2:53").packet().with_ip_options(&[1; 8]);
        assert!(packet.has_right_sums() && packet.payload_at() == 28);
        let packet = datagram("[fd77::1]:1", "[fd77::2]:53").packet().behind(&[0, 60]);
        assert_eq!((packet.bytes()[6], packet.bytes()[40], packet.bytes()[48]), (0, 60, UDP));
    }
}
