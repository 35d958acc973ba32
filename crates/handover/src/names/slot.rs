//! A slot of the table: atomic words only, because other processes write to it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::{ConnectionTuple, Name};

/// No socket has these cookies. The kernel counts up from 1, and down from the largest in a nested context
/// (gen_cookie_next). Reaching the middle would take centuries.
pub(super) const NEVER_USED: u64 = 0;
pub(super) const FREE: u64 = 1 << 63;
/// Being written, or abandoned by a process that was killed while it wrote.
pub(super) const TAKEN: u64 = FREE + 1;

/// The upper half of the flags holds the namespace.
const HAS_DESTINATION: u64 = 1;
/// Which of the four addresses are IPv4: bits 1 to 4, in the order of the addresses.
const IS_IPV4: u64 = 2;

#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    /// The owner's cookie. Everything else is written before it is set, and is valid only while it stays the
    /// same.
    pub(super) cookie: AtomicU64,
    flags: AtomicU64,
    /// The ports of client, destination, local and sender: 16 bits each.
    ports: AtomicU64,
    /// The scope of a link-local client; in the upper half the device that the connection is bound to.
    scope: AtomicU64,
    /// The addresses in the same order, IPv4 in mapped form.
    ips: [[AtomicU64; 2]; 4],
}

impl Slot {
    /// The caller must have set the cookie to [`TAKEN`].
    pub(super) fn write(&self, cookie: u64, name: &Name) {
        let unspecified = SocketAddr::from(([0; 4], 0));
        let addrs =
            [name.client, name.destination.unwrap_or(unspecified), name.tuple.local, name.tuple.sender];
        let mut flags = if name.destination.is_some() { HAS_DESTINATION } else { 0 };
        let mut ports = 0;
        for (place, addr) in addrs.iter().enumerate() {
            flags |= if addr.is_ipv4() { IS_IPV4 << place } else { 0 };
            ports |= u64::from(addr.port()) << (16 * place);
            store(&self.ips[place], ipv6_form(addr.ip()).octets());
        }
        flags |= u64::from(name.tuple.namespace) << 32;
        self.flags.store(flags, Ordering::Relaxed);
        self.ports.store(ports, Ordering::Relaxed);
        let scope = scope(name.client) | (u64::from(name.tuple.device) << 32);
        self.scope.store(scope, Ordering::Relaxed);
        self.cookie.store(cookie, Ordering::Release);
    }

    /// Reads the contents, if the slot belonged to that cookie during the whole read.
    pub(super) fn read(&self, cookie: u64) -> Option<Name> {
        let flags = self.flags.load(Ordering::Relaxed);
        let ports = self.ports.load(Ordering::Relaxed);
        let scope = self.scope.load(Ordering::Relaxed);
        let addr = |place: usize, scope: u64| {
            let [.., high, low] = (ports >> (16 * place)).to_be_bytes();
            let port = u16::from_be_bytes([high, low]);
            let ip = Ipv6Addr::from(load(&self.ips[place]));
            socket_addr(ip, port, flags & (IS_IPV4 << place) != 0, scope)
        };
        let name = Name {
            client: addr(0, scope & u64::from(u32::MAX)),
            destination: (flags & HAS_DESTINATION != 0).then(|| addr(1, 0)),
            tuple: ConnectionTuple {
                local: addr(2, 0),
                sender: addr(3, 0),
                device: upper_half(scope),
                namespace: upper_half(flags),
            },
        };
        // The reads above must complete before the cookie is read again.
        fence(Ordering::Acquire);
        (self.cookie.load(Ordering::Relaxed) == cookie).then_some(name)
    }
}

/// Sixteen bytes in two words.
pub(super) fn store(words: &[AtomicU64; 2], bytes: [u8; 16]) {
    let bits = u128::from_ne_bytes(bytes);
    let low = u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    let high = u64::try_from(bits >> 64).unwrap_or(0);
    words[0].store(low, Ordering::Relaxed);
    words[1].store(high, Ordering::Relaxed);
}

pub(super) fn load(words: &[AtomicU64; 2]) -> [u8; 16] {
    let [low, high] = words;
    let bits = (u128::from(high.load(Ordering::Relaxed)) << 64) | u128::from(low.load(Ordering::Relaxed));
    bits.to_ne_bytes()
}

fn ipv6_form(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn upper_half(word: u64) -> u32 {
    u32::try_from(word >> 32).unwrap_or(0)
}

fn scope(addr: SocketAddr) -> u64 {
    match addr {
        SocketAddr::V6(v6) => u64::from(v6.scope_id()),
        SocketAddr::V4(_) => 0,
    }
}

fn socket_addr(ip: Ipv6Addr, port: u16, is_ipv4: bool, scope: u64) -> SocketAddr {
    match ip.to_ipv4_mapped() {
        Some(ip) if is_ipv4 => SocketAddr::from((ip, port)),
        _ => SocketAddrV6::new(ip, port, 0, u32::try_from(scope).unwrap_or(0)).into(),
    }
}
