//! Spliced flows as the programs see them: `c/offload/layout.h` asserts the same sizes. The table is mapped
//! into memory that the programs write at the same time, so each field is an atomic.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::mapped::Shared;
use crate::layout::{Address, FlowKey};

/// Raised whenever a struct or a map of the splice programs changes its shape.
pub(crate) const SPLICE_LAYOUT: u32 = 8;

/// `enum splice_stage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Nobody's.
    Free,
    /// The programs learn, and change nothing.
    Armed,
    /// Bytes from the cut on are translated; those before it are the sockets'.
    Tail,
    /// Everything is translated.
    Spliced,
    /// Both ends have been acknowledged.
    Closing,
    /// A reset has passed.
    Dead,
    /// A new connection uses the addresses.
    Gone,
}

impl Stage {
    pub(crate) fn of(number: u32) -> Stage {
        match number {
            1 => Stage::Armed,
            2 => Stage::Tail,
            3 => Stage::Spliced,
            4 => Stage::Closing,
            5 => Stage::Dead,
            6 => Stage::Gone,
            _ => Stage::Free,
        }
    }
}

pub(crate) const TOLD: u32 = 0x01;
pub(crate) const SAID: u32 = 0x02;
pub(crate) const TS_SHIFT: u32 = 0x08;
pub(crate) const HELD: u32 = 0x10;
pub(crate) const FIN_SAID: u32 = 0x20;
pub(crate) const FIN_TAKEN: u32 = 0x40;
pub(crate) const RESET: u32 = 0x80;
pub(crate) const CUT: u32 = 0x100;
pub(crate) const WAY: u32 = 0x400;
pub(crate) const WAY_LOST: u32 = 0x800;

/// `struct face`.
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
#[repr(C)]
pub(crate) struct Face {
    pub(crate) key: [AtomicU32; 9],
    pub(crate) shift: AtomicU32,
    pub(crate) cut: AtomicU32,
    pub(crate) nxt: AtomicU32,
    pub(crate) ack: AtomicU32,
    pub(crate) edge: AtomicU32,
    pub(crate) tsval: AtomicU32,
    pub(crate) una: AtomicU32,
    pub(crate) first: AtomicU32,
    pub(crate) max_window: AtomicU32,
    pub(crate) said_edge: AtomicU32,
    pub(crate) fin: AtomicU32,
    pub(crate) kept: AtomicU32,
    pub(crate) own_nxt: AtomicU32,
    pub(crate) clock: AtomicU32,
    pub(crate) ts_shift: AtomicU32,
    pub(crate) device: AtomicU32,
    pub(crate) peer_scale: AtomicU8,
    pub(crate) own_scale: AtomicU8,
    pub(crate) has_timestamps: AtomicU8,
    unused: AtomicU8,
    pub(crate) known: AtomicU32,
    pub(crate) said_clock: AtomicU32,
    pub(crate) asked_ns: AtomicU64,
    pub(crate) end: AtomicU64,
    pub(crate) segments: AtomicU64,
    sent_ns: AtomicU64,
}

/// `struct spliced`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Spliced {
    pub(crate) stage: AtomicU32,
    unused: AtomicU32,
    pub(crate) since_ns: AtomicU64,
    pub(crate) faces: [Face; 2],
}

// SAFETY: every field is an atomic, so any bytes are valid; the size, 320 (asserted below), is a multiple of
// 8, and its alignment is 64.
unsafe impl Shared for Spliced {}

impl Spliced {
    /// Whether any flow has had this place.
    pub(super) fn was_used(&self) -> bool {
        self.faces[0].key.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

/// Also said in the documentation: what a flow takes beside its two keys.
pub const FLOW_BYTES: usize = 320;

const _: () = assert!(size_of::<Face>() == 144 && size_of::<Spliced>() == FLOW_BYTES);

impl Face {
    /// For a flow that begins; the programs don't look at it yet.
    pub(crate) fn begin(&self, key: &FlowKey, peer_scale: u8, own_scale: u8, has_timestamps: bool) {
        for (word, value) in self.key.iter().zip(words(key)) {
            word.store(value, Ordering::Relaxed);
        }
        let cleared = [
            &self.shift,
            &self.cut,
            &self.nxt,
            &self.ack,
            &self.edge,
            &self.tsval,
            &self.una,
            &self.first,
            &self.max_window,
            &self.said_edge,
            &self.fin,
            &self.kept,
            &self.own_nxt,
            &self.clock,
            &self.ts_shift,
            &self.device,
            &self.known,
        ];
        cleared.iter().for_each(|field| field.store(0, Ordering::Relaxed));
        [&self.asked_ns, &self.end, &self.segments, &self.sent_ns]
            .iter()
            .for_each(|field| field.store(0, Ordering::Relaxed));
        self.peer_scale.store(peer_scale, Ordering::Relaxed);
        self.own_scale.store(own_scale, Ordering::Relaxed);
        self.has_timestamps.store(has_timestamps.into(), Ordering::Relaxed);
    }

    /// Sets `first`, so that the stream has `bytes` bytes before `cut`. `end` becomes at least `cut`, and
    /// stays where it is if it is higher.
    pub(crate) fn count_from(&self, cut: u32, bytes: u64) {
        let first = cut.wrapping_sub(low(bytes));
        self.first.store(first, Ordering::Relaxed);
        // Segments come in meanwhile. Err is impossible: the closure always has an answer.
        let _ = self.end.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |end| {
            let ahead = u64::try_from(low(end).wrapping_sub(cut).cast_signed()).unwrap_or(0);
            Some(u64::from(first) + bytes + ahead)
        });
    }

    /// The peer has sent its bytes up to `next`.
    pub(crate) fn raise_end(&self, next: u32) {
        // Err: it is as high already.
        let _ = self.end.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |end| {
            let more = u64::try_from(next.wrapping_sub(low(end)).cast_signed()).unwrap_or(0);
            (more > 0).then_some(end + more)
        });
    }

    /// The number behind the peer's last byte.
    pub(crate) fn end_number(&self) -> u32 {
        low(self.end.load(Ordering::Acquire))
    }

    /// The length of the peer's stream, whoever has carried it. An end (FIN) has a number but is no byte.
    pub(crate) fn stream_bytes(&self) -> u64 {
        let end = self.end.load(Ordering::Relaxed);
        let has_end = self.known.load(Ordering::Acquire) & FIN_SAID != 0
            && self.fin.load(Ordering::Relaxed) == low(end);
        end.saturating_sub(u64::from(self.first.load(Ordering::Relaxed))).saturating_sub(has_end.into())
    }

    pub(crate) fn key(&self) -> FlowKey {
        let words = self.key.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let address = |from: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(words[from..from + 4].as_flattened());
            Address(bytes)
        };
        let [a, b, c, d] = words[8];
        FlowKey { remote: address(0), local: address(4), remote_port: [a, b], local_port: [c, d] }
    }
}

/// A sequence number: the lower half of one that is counted on above 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
pub(crate) fn low(number: u64) -> u32 {
    number as u32
}

/// The key under which segments from `peer` to our socket at `own` come in.
pub(crate) fn key_of(peer: SocketAddr, own: SocketAddr) -> FlowKey {
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => Address(v4.ip().to_ipv6_mapped().octets()),
        SocketAddr::V6(v6) => Address(v6.ip().octets()),
    };
    FlowKey {
        remote: octets(peer),
        local: octets(own),
        remote_port: peer.port().to_be_bytes(),
        local_port: own.port().to_be_bytes(),
    }
}

/// The addresses of the peer and of our end: the reverse of [`key_of`].
pub(crate) fn addresses_of(key: &FlowKey) -> (SocketAddr, SocketAddr) {
    let at = |address: Address, port| {
        let ip = IpAddr::from(Ipv6Addr::from(address.0)).to_canonical();
        SocketAddr::new(ip, u16::from_be_bytes(port))
    };
    (at(key.remote, key.remote_port), at(key.local, key.local_port))
}

pub(crate) fn words(key: &FlowKey) -> [u32; 9] {
    let mut words = [0; 9];
    let bytes = key.remote.0.iter().chain(&key.local.0).chain(&key.remote_port).chain(&key.local_port);
    let mut bytes = bytes.copied();
    for word in &mut words {
        *word = u32::from_ne_bytes(std::array::from_fn(|_| bytes.next().unwrap_or_default()));
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// `before`, `behind`: numbers that the programs, or our socket, have seen before and behind the cut.
        #[test]
        fn each_byte_is_counted_once_in_whatever_order_numbers_come(
            first in any::<u32>(),
            relayed in 0_u64..1 << 40,
            before in proptest::collection::vec(-3000_i64..3000, 0..4),
            behind in proptest::collection::vec(-3000_i64..3000, 0..8),
        ) {
            let at = |count: u64| first.wrapping_add(low(count));
            let counts = |offs: &[i64]| -> Vec<u64> {
                offs.iter().map(|off| relayed.saturating_add_signed(*off)).collect()
            };
            let (before, behind) = (counts(&before), counts(&behind));
            let face = Face::default();
            face.end.store(at(relayed).into(), Ordering::Relaxed);
            before.iter().for_each(|count| face.raise_end(at(*count)));
            face.count_from(at(relayed), relayed);
            behind.iter().for_each(|count| face.raise_end(at(*count)));
            let most = before.iter().chain(&behind).copied().max().unwrap_or(0).max(relayed);
            prop_assert_eq!(face.stream_bytes(), most);
        }
    }

    #[test]
    fn a_stream_may_be_longer_than_numbers_reach() {
        let face = Face::default();
        face.count_from(5, 0);
        for end in 1..=6_u64 {
            face.raise_end(low(5 + end * 1_000_000_000));
            assert_eq!(face.stream_bytes(), end * 1_000_000_000);
        }
    }

    #[test]
    fn an_end_is_no_byte() {
        let face = Face::default();
        face.count_from(1000, 0);
        face.raise_end(1501);
        assert_eq!(face.stream_bytes(), 501);
        face.fin.store(1501, Ordering::Relaxed);
        face.known.fetch_or(FIN_SAID, Ordering::Relaxed);
        assert_eq!(face.stream_bytes(), 500);
    }
}
