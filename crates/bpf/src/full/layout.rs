//! The tables as the programs see them: `c/offload/full_layout.h` asserts the same sizes.

use std::net::{IpAddr, SocketAddr};

use aya::Pod;

use crate::layout::Address;

/// `struct full_port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawPort {
    pub(crate) port: [u8; 2],
    pub(crate) version: u8,
    pub(crate) unused: u8,
}

/// `struct full_listener`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(4))]
pub(crate) struct RawListener {
    pub(crate) address: Address,
    pub(crate) backend: Address,
    pub(crate) backend_port: [u8; 2],
    pub(crate) group: u8,
    pub(crate) is_any: u8,
    pub(crate) number: u32,
    pub(crate) header_max: u32,
    pub(crate) left_s: u32,
    pub(crate) is_draining: u32,
}

/// `struct full_endpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(4))]
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    pub(crate) port: [u8; 2],
    pub(crate) unused: u16,
}

/// `struct full_backend`: the programs fill it in.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawBackend([u64; 7]);

impl RawBackend {
    /// No connection to the backend has been seen yet.
    pub(crate) const UNKNOWN: Self = Self([0; 7]);

    /// For tests: a backend that is reached by this device, without a mark, with segments of at most `mss`
    /// both ways.
    pub(crate) fn known(learnt_ns: u64, device: u32, mss: u16) -> Self {
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

// SAFETY: repr(C) of integers and arrays of bytes, whose sizes add up to the struct's (asserted above): no
// padding, and every bit pattern is valid.
unsafe impl Pod for RawPort {}
// SAFETY: repr(C) of fields of 16, 16, 2, 1 and 1 bytes and four of 4, which add up to the struct's 52
// (asserted above): no padding, and every bit pattern is valid.
unsafe impl Pod for RawListener {}
// SAFETY: repr(C) of fields of 16, 2 and 2 bytes, which add up to the struct's 20 (asserted above): no
// padding, and every bit pattern is valid.
unsafe impl Pod for Endpoint {}
// SAFETY: repr(C) of seven words: no padding, and every bit pattern is valid.
unsafe impl Pod for RawBackend {}

pub(crate) fn address_of(ip: IpAddr) -> Address {
    Address(match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    })
}

pub(crate) fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint { address: address_of(at.ip()), port: at.port().to_be_bytes(), unused: 0 }
}
