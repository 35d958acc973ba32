//! Flows as the programs see them: `c/layout.h` asserts the same sizes. The table is mapped into memory that
//! the programs write at the same time, so each field is an atomic.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use truepeer_bpf::Shared;

/// `MAX_OFFLOADED`.
pub(crate) const MOST: u32 = 16_384;
/// `LISTENER`.
pub(crate) const LISTENER: u32 = u32::MAX;
/// `enum side`.
pub(crate) const SENDER: usize = 0;
pub(crate) const BACKEND: usize = 1;

/// `struct flow_key`: remote and local address, remote and local port, in network order.
pub(crate) type Key = [u8; 36];
/// `struct pair`: local and remote address.
pub(crate) type Pair = [u8; 32];

/// `HEADER_WORDS`, in bytes.
const HEADER_BYTES: usize = 52;

/// The path to an end, and how a socket of this host sends datagrams by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The longest packet.
    pub mtu: u32,
    /// TTL or hop limit.
    pub hops: u8,
    /// Whether routers may cut datagrams into fragments (no DF).
    pub may_be_cut: bool,
}

/// `struct end`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct End {
    key: [AtomicU32; 9],
    pub(crate) device: AtomicU32,
    mtu: AtomicU32,
    /// Hops, and whether routers may cut datagrams.
    manner: AtomicU32,
}

/// `struct moved`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Moving {
    pub(crate) datagrams: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// `struct offloaded`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Offloaded {
    pub(crate) is_here: AtomicU32,
    header_len: AtomicU32,
    is_spp: AtomicU32,
    sender_by: AtomicU32,
    pub(crate) ends: [End; 2],
    header: [AtomicU32; HEADER_BYTES / 4],
    pub(crate) merged: AtomicU32,
    pub(crate) moved: [Moving; 2],
}

const _: () = assert!(size_of::<End>() == 48 && size_of::<Offloaded>() == 320);

// SAFETY: every field is an atomic, so any bytes are valid; the size, 320 (asserted above), is a multiple of
// 8, and its alignment is 64.
unsafe impl Shared for Offloaded {}

impl Offloaded {
    /// For a flow that begins; the programs don't look at it yet.
    pub(crate) fn begin(&self, keys: [Key; 2], header: Option<&Header<'_>>, sender_by: u32) {
        let bytes = header.map_or(&[][..], |header| header.raw);
        self.header_len.store(u32::try_from(bytes.len()).unwrap_or_default(), Ordering::Relaxed);
        self.is_spp.store(header.is_some_and(|header| header.is_spp).into(), Ordering::Relaxed);
        self.sender_by.store(sender_by, Ordering::Relaxed);
        for (end, key) in self.ends.iter().zip(keys) {
            store(&end.key, &key);
            end.device.store(0, Ordering::Relaxed);
        }
        store(&self.header, bytes);
        for moved in &self.moved {
            moved.datagrams.store(0, Ordering::Relaxed);
            moved.bytes.store(0, Ordering::Relaxed);
        }
    }
}

impl End {
    pub(crate) fn set_path(&self, path: Path) {
        self.mtu.store(path.mtu, Ordering::Relaxed);
        let manner = [path.hops, path.may_be_cut.into(), 0, 0];
        self.manner.store(u32::from_ne_bytes(manner), Ordering::Relaxed);
    }

    /// The port of the remote end: senders whose datagrams carry a header may change it.
    pub(crate) fn remote_port(&self) -> u16 {
        let [a, b, ..] = self.key[8].load(Ordering::Relaxed).to_ne_bytes();
        u16::from_be_bytes([a, b])
    }

    pub(crate) fn set_remote_port(&self, port: u16) {
        let [_, _, c, d] = self.key[8].load(Ordering::Relaxed).to_ne_bytes();
        let [a, b] = port.to_be_bytes();
        self.key[8].store(u32::from_ne_bytes([a, b, c, d]), Ordering::Relaxed);
    }
}

/// Zeros follow the last byte.
fn store(words: &[AtomicU32], bytes: &[u8]) {
    let mut bytes = bytes.iter().copied();
    for word in words {
        let next = std::array::from_fn(|_| bytes.next().unwrap_or_default());
        word.store(u32::from_ne_bytes(next), Ordering::Relaxed);
    }
}

/// The key of datagrams from `remote` to `local`.
pub(crate) fn key_of(remote: SocketAddr, local: SocketAddr) -> Key {
    let ports = [remote.port().to_be_bytes(), local.port().to_be_bytes()];
    let mut key = [0; 36];
    key[..32].copy_from_slice(&pair_of(remote.ip(), local.ip()));
    key[32..].copy_from_slice(ports.as_flattened());
    key
}

pub(crate) fn pair_of(first: IpAddr, second: IpAddr) -> Pair {
    let mut pair = [0; 32];
    for (half, ip) in pair.chunks_exact_mut(16).zip([first, second]) {
        half.copy_from_slice(&mapped(ip).octets());
    }
    pair
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// A header that the programs can compare: each datagram of the flow begins with the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    raw: &'a [u8],
    /// As it stands there, IPv4 mapped.
    client: (Ipv6Addr, u16),
    is_spp: bool,
}

impl<'a> Header<'a> {
    /// `None`: it has TLVs or names nobody, so datagrams of the flow may have others.
    #[must_use]
    pub fn of(raw: &'a [u8]) -> Option<Self> {
        const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21";
        let ipv6 = |at: usize| Some(Ipv6Addr::from(*raw.get(at..)?.first_chunk::<16>()?));
        let port = |at: usize| Some(u16::from_be_bytes(*raw.get(at..)?.first_chunk()?));
        let (client, is_spp) = match (raw.strip_prefix(SIGNATURE), raw.len()) {
            (Some([0x12, 0, 12, ..]), 28) => {
                let [a, b, c, d] = *raw.get(16..)?.first_chunk()?;
                ((std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped(), port(24)?), false)
            }
            (Some([0x22, 0, 36, ..]), 52) => ((ipv6(16)?, port(48)?), false),
            (None, 38) if raw.starts_with(&[0x56, 0xec]) => ((ipv6(2)?, port(34)?), true),
            _ => return None,
        };
        Some(Self { raw, client, is_spp })
    }

    /// The key of datagrams to `local` that begin with it.
    pub(crate) fn key(&self, local: SocketAddr) -> Key {
        key_of(SocketAddr::new(self.client.0.into(), self.client.1), local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u8::try_from(addresses.len()).unwrap();
        [b"\r\n\r\n\0\r\nQUIT\n\x21", &[family, 0, length][..], addresses].concat()
    }

    #[test]
    fn headers_that_may_differ_from_datagram_to_datagram_are_not_compared() {
        let ipv4 = v2(0x12, &[192, 0, 2, 7, 198, 51, 100, 1, 0x13, 0x88, 0, 53]);
        let header = Header::of(&ipv4).unwrap();
        assert_eq!(header.client, (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0207), 5000));
        assert!(!header.is_spp);
        let ipv6 = v2(0x22, &[7; 36]);
        assert_eq!(Header::of(&ipv6).unwrap().client, (Ipv6Addr::from([7; 16]), 0x0707));
        let spp = [&[0x56, 0xec][..], &[9; 36]].concat();
        assert_eq!(Header::of(&spp).map(|header| (header.is_spp, header.client.1)), Some((true, 0x0909)));
        let with_tlv = v2(0x12, &[0; 16]);
        let local = {
            let mut local = ipv4.clone();
            local[12] = 0x20;
            local
        };
        let stream = v2(0x11, &[0; 12]);
        for other in [&with_tlv[..], &local, &stream, &ipv4[..27], &spp[..37], &[]] {
            assert_eq!(Header::of(other), None, "{other:?}");
        }
    }

    #[test]
    fn keys_have_the_programs_order() {
        let key = key_of("192.0.2.7:5000".parse().unwrap(), "10.0.0.1:53".parse().unwrap());
        let ipv4 = |ip: [u8; 4]| [&[0; 10][..], &[0xff, 0xff], &ip].concat();
        assert_eq!(key[..], [ipv4([192, 0, 2, 7]), ipv4([10, 0, 0, 1]), vec![0x13, 0x88, 0, 53]].concat());
    }
}
