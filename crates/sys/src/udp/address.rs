//! Socket addresses in the kernel's form.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for the address of either family.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union RawAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// `size_of::<RawAddress>()` in the kernel's type.
pub(super) const ROOM: libc::socklen_t = 28;
const _: () = assert!(size_of::<RawAddress>() == ROOM as usize);

impl RawAddress {
    /// All zeros: no family.
    pub(super) const fn empty() -> Self {
        // SAFETY: both members are plain integers, for which zeros are valid.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// The kernel's form, and its length.
    pub(super) fn new(address: &SocketAddr) -> (Self, libc::socklen_t) {
        let mut raw = Self::empty();
        match address {
            SocketAddr::V4(address) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: AF_INET,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (raw, 16)
            }
            SocketAddr::V6(address) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: AF_INET6,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                (raw, ROOM)
            }
        }
    }

    /// The address that the kernel has written; `None` if it is of neither family.
    pub(super) fn decode(&self) -> Option<SocketAddr> {
        // SAFETY: the family is the first field of both members, and every member is plain integers,
        // initialised (to zeros at least) over its whole length.
        unsafe {
            match self.v4.sin_family {
                AF_INET => Some(decode_v4(&self.v4)),
                AF_INET6 => Some(decode_v6(&self.v6)),
                _ => None,
            }
        }
    }
}

pub(super) fn decode_v4(raw: &libc::sockaddr_in) -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)), u16::from_be(raw.sin_port)).into()
}

pub(super) fn decode_v6(raw: &libc::sockaddr_in6) -> SocketAddr {
    let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
    SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, raw.sin6_scope_id).into()
}

const AF_INET: libc::sa_family_t = 2;
const AF_INET6: libc::sa_family_t = 10;
const _: () = assert!(AF_INET as i32 == libc::AF_INET && AF_INET6 as i32 == libc::AF_INET6);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_survive_the_way_there_and_back() {
        for text in ["192.0.2.1:53", "[2001:db8::1]:4433", "[fe80::1%7]:1", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(RawAddress::new(&address).0.decode(), Some(address));
        }
        assert_eq!(RawAddress::empty().decode(), None);
    }
}
