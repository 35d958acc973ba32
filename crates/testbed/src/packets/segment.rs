//! TCP segments.

use std::net::SocketAddr;

use super::packet::{Packet, TCP};
use super::sum;

/// The flag FIN: no more data from this side.
pub const FIN: u8 = 0x01;
/// The flag SYN: the first segment of a connection.
pub const SYN: u8 = 0x02;
/// The flag RST: the connection is aborted.
pub const RST: u8 = 0x04;
/// The flag PSH: deliver the data without delay.
pub const PSH: u8 = 0x08;
/// The flag ACK: the acknowledgement number is valid.
pub const ACK: u8 = 0x10;
/// The flag URG: the urgent pointer is valid.
pub const URG: u8 = 0x20;

const FIXED: usize = 20;

/// A TCP segment (RFC 9293, 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its source.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
    /// The sequence number of its first byte.
    pub seq: u32,
    /// The acknowledgement number.
    pub ack: u32,
    /// [`SYN`] and the others.
    pub flags: u8,
    /// The window, not scaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options as in the header; the last word is padded with zeros.
    pub options: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Creates a segment without data, options or flags.
    pub fn new(from: SocketAddr, to: SocketAddr) -> Segment {
        Segment {
            from,
            to,
            seq: 0,
            ack: 0,
            flags: 0,
            window: u16::MAX,
            urgent: 0,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// As an IP packet with valid checksums.
    pub fn packet(&self) -> Packet {
        Packet::new(self.from.ip(), self.to.ip(), TCP, &self.bytes())
    }

    /// The TCP header and the data, with a valid checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = u8::try_from((FIXED + options.len()) / 4).unwrap_or(u8::MAX);
        let mut bytes = Vec::with_capacity(FIXED + options.len() + self.payload.len());
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([words << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend(&self.payload);
        let sum = sum::of_transport(self.from.ip(), self.to.ip(), TCP, &bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Reads one from an IP packet without extension headers. Checksums are ignored: a device with offloads
    /// has not set them yet.
    pub fn parse(packet: &[u8]) -> Option<Segment> {
        let (from, to, tcp) = super::packet::read(packet, TCP)?;
        let number = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let short = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let data_at = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Segment {
            from: SocketAddr::new(from, short(0)?),
            to: SocketAddr::new(to, short(2)?),
            seq: number(4)?,
            ack: number(8)?,
            flags: *tcp.get(13)?,
            window: short(14)?,
            urgent: short(18)?,
            options: tcp.get(FIXED..data_at)?.to_vec(),
            payload: tcp.get(data_at..)?.to_vec(),
        })
    }

    /// The value and the echo of its timestamps option (RFC 7323), if it has one.
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        // Of another length it is ignored, as by tcp_parse_options().
        let option: [u8; 8] = self.option(8)?.try_into().ok()?;
        let [value, echo] = [0, 4].map(|at| [option[at], option[at + 1], option[at + 2], option[at + 3]]);
        Some((u32::from_be_bytes(value), u32::from_be_bytes(echo)))
    }

    /// The contents of the option of this kind, without its kind and length.
    pub fn option(&self, kind: u8) -> Option<&[u8]> {
        let mut rest = self.options.as_slice();
        loop {
            match rest {
                [] | [0, ..] => return None,
                [1, behind @ ..] => rest = behind,
                [found, len, ..] => {
                    let option = rest.get(2..usize::from(*len))?;
                    if *found == kind {
                        return Some(option);
                    }
                    rest = &rest[usize::from(*len)..];
                }
                [_] => return None,
            }
        }
    }
}

/// A timestamps option, padded to whole words.
pub fn timestamps(value: u32, echo: u32) -> Vec<u8> {
    [[1, 1, 8, 10].as_slice(), &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        for (from, to) in [("10.0.0.1:1000", "10.0.0.2:80"), ("[fd77::1]:1000", "[fd77::2]:80")] {
            let mut segment = Segment::new(from.parse().expect("from"), to.parse().expect("to"));
            segment.flags = SYN | ACK;
            (segment.seq, segment.ack) = (u32::MAX, 7);
            segment.options = [[8, 14].as_slice(), &[0; 12], &timestamps(1, 2)].concat();
            assert_eq!(segment.timestamps(), None);
            segment.options = timestamps(1, 2);
            segment.payload = b"odd".to_vec();
            let packet = segment.packet();
            assert_eq!(Segment::parse(packet.bytes()), Some(segment.clone()));
            assert_eq!(segment.timestamps(), Some((1, 2)));
            assert!(packet.has_right_sums());
            assert!(!packet.with_wrong_sum().has_right_sums());
        }
    }
}
