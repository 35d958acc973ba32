//! The start of a connection, parsed by `truepeer-proto`. TLVs are skipped unread, as in the programs.

use std::net::IpAddr;

use truepeer_policy::SpecialRange;
use truepeer_proto::{Addresses, Command, Decoded, Limits, Transport, decode};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

pub(crate) enum Start {
    /// Not the start of a header.
    NotProxy,
    Malformed,
    /// Valid so far; its length, if already known.
    Needs(usize),
    /// A complete header, or one that lacks only TLVs.
    Whole {
        len: usize,
        client: Option<Client>,
        is_v1: bool,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: [u8; 16],
    pub(crate) port: u16,
    /// 4 or 6.
    pub(crate) version: u8,
    /// In a range that must not be claimed.
    pub(crate) is_special: bool,
}

pub(crate) fn read(bytes: &[u8]) -> Start {
    let begins = |signature: &[u8]| bytes.iter().zip(signature).all(|(byte, expected)| byte == expected);
    match bytes.first() {
        None => Start::Needs(0),
        Some(b'P') if begins(b"PROXY") => read_v1(bytes),
        Some(b'\r') if begins(SIGNATURE) => read_v2(bytes),
        Some(_) => Start::NotProxy,
    }
}

fn read_v1(bytes: &[u8]) -> Start {
    match decode(bytes, Limits::default()) {
        Err(_) => Start::Malformed,
        Ok(Decoded::NeedMore { .. }) => Start::Needs(0),
        Ok(Decoded::Done { header, consumed }) => whole(&header.addresses, header.command, consumed, true),
    }
}

/// The header truncated after its addresses.
fn read_v2(bytes: &[u8]) -> Start {
    let mut start = bytes.to_vec();
    let mut len = 0;
    if bytes.len() >= 16 {
        len = 16 + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        let block = block_of(bytes[12] & 0x0f, bytes[13]);
        if len > 16 + block {
            start[14..16].copy_from_slice(&u16::try_from(block).unwrap_or_default().to_be_bytes());
            start.truncate(16 + block);
        }
    }
    match decode(&start, Limits { max_len: usize::MAX, ..Limits::default() }) {
        Err(_) => Start::Malformed,
        Ok(Decoded::NeedMore { .. }) => Start::Needs(len),
        Ok(Decoded::Done { header, .. }) => whole(&header.addresses, header.command, len, false),
    }
}

fn block_of(command: u8, family: u8) -> usize {
    match (command, family >> 4, family & 0x0f) {
        (1, 1, 1..=2) => 12,
        (1, 2, 1..=2) => 36,
        (1, 3, 1..=2) => 216,
        _ => 0,
    }
}

fn whole(addresses: &Addresses, command: Command, len: usize, is_v1: bool) -> Start {
    let client = match (command, addresses) {
        (Command::Proxy, Addresses::Inet { transport: Transport::Stream, source, .. }) => {
            let ip = source.ip().to_canonical();
            let (address, version) = match ip {
                IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), 4),
                IpAddr::V6(ip) => (ip.octets(), 6),
            };
            Some(Client { address, port: source.port(), version, is_special: SpecialRange::of(ip).is_some() })
        }
        _ => None,
    };
    Start::Whole { len, client, is_v1 }
}
