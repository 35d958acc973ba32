//! The tables as the programs see them: `c/full_layout.h` asserts the same sizes.

use std::net::{IpAddr, SocketAddr};

use aya::Pod;

use crate::layout::Address;

/// `struct full_port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct RawPort {
    pub(super) port: [u8; 2],
    pub(super) version: u8,
    pub(super) unused: u8,
}

/// `struct full_listener`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(4))]
pub(super) struct RawListener {
    pub(super) address: Address,
    pub(super) backend: Address,
    pub(super) backend_port: [u8; 2],
    pub(super) group: u8,
    pub(super) is_any: u8,
    pub(super) number: u32,
    pub(super) header_max: u32,
    pub(super) left_s: u32,
    pub(super) is_draining: u32,
}

/// `struct full_endpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(4))]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) port: [u8; 2],
    pub(super) unused: u16,
}

/// `struct full_backend`: the programs fill it in.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct RawBackend([u64; 7]);

impl RawBackend {
    /// No connection to the backend has been seen yet.
    pub(super) const UNKNOWN: Self = Self([0; 7]);

    /// For tests: a backend that is reached by this device, without a mark, with segments of at most `mss` both ways.
    pub(super) fn known(learnt_ns: u64, device: u32, mss: u16) -> Self {
        let mut bytes = [0_u8; 56];
        bytes[..8].copy_from_slice(&learnt_ns.to_ne_bytes());
        bytes[40..44].copy_from_slice(&device.to_ne_bytes());
        for at in [48, 50] {
            bytes[at..at + 2].copy_from_slice(&mss.to_ne_bytes());
        }
        let (words, _) = bytes.as_chunks();
        Self(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }
}

const _: () = assert!(size_of::<RawPort>() == 4 && size_of::<RawListener>() == 52);
const _: () = assert!(size_of::<Endpoint>() == 20 && size_of::<RawBackend>() == 56);

// SAFETY: repr(C) of integers and arrays of bytes, whose sizes add up to the struct's (asserted above): no padding, and every bit pattern is
// valid.
unsafe impl Pod for RawPort {}
// SAFETY: repr(C) of fields of 16, 16, 2, 1 and 1 bytes and four of 4, which add up to the struct's 52 (asserted above): no padding, and every
// bit pattern is valid.
unsafe impl Pod for RawListener {}
// SAFETY: repr(C) of fields of 16, 2 and 2 bytes, which add up to the struct's 20 (asserted above): no padding, and every bit pattern is valid.
unsafe impl Pod for Endpoint {}
// SAFETY: repr(C) of seven words: no padding, and every bit pattern is valid.
unsafe impl Pod for RawBackend {}

pub(super) fn address_of(ip: IpAddr) -> Address {
    Address(match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    })
}

pub(super) fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint { address: address_of(at.ip()), port: at.port().to_be_bytes(), unused: 0 }
}
