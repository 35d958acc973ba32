//! Whether an address belongs to this host now (to the calling thread's network namespace).

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::marked::getsockname;

thread_local! {
    /// Unbound sockets: a failed bind() leaves them unbound.
    static PROBES: RefCell<[Option<OwnedFd>; 2]> = const { RefCell::new([None, None]) };
}

/// Opens the sockets of [`is_own_address`] for this thread. Otherwise the first call opens them.
pub fn prepare() {
    PROBES.with_borrow_mut(|probes| {
        for (probe, ip) in
            probes.iter_mut().zip([IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()])
        {
            *probe = open(ip).ok();
        }
    });
}

/// Whether `ip` is an address of this host. Nothing is sent. A negative answer costs one system call (.2 µs);
/// the thread keeps a socket of each family for it.
///
/// Returns true if the kernel can't be asked (no descriptor is left), so that a caller that refuses such
/// addresses fails closed.
#[must_use]
pub fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let kept = PROBES.try_with(|probes| {
        let probe = &mut probes.borrow_mut()[usize::from(ip.is_ipv6())];
        if probe.is_none() {
            match open(ip) {
                Ok(opened) => *probe = Some(opened),
                Err(errno) => return is_own_where_no_socket(errno),
            }
        }
        let answer = probe.as_ref().map_or(BindAnswer::Unsaid, |probe| ask(probe.as_fd(), ip));
        if answer != BindAnswer::No {
            // It is bound now, or may be.
            *probe = None;
        }
        answer.is_own(ip)
    });
    // The thread is ending and has dropped its sockets.
    kept.unwrap_or_else(|_| is_own_address_once(ip))
}

/// Asks by a socket that is closed afterwards: for other programs' processes, where no descriptor may
/// stay open.
#[must_use]
pub fn is_own_address_once(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    match open(ip) {
        Ok(probe) => ask(probe.as_fd(), ip).is_own(ip),
        Err(errno) => is_own_where_no_socket(errno),
    }
}

/// Opens an unbound IPv4 or IPv6 socket for [`is_own_address`], for a caller that keeps it.
///
/// # Errors
/// Those of socket(2).
pub fn open_probe(is_ipv6: bool) -> Result<OwnedFd, Errno> {
    open(if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() })
}

/// Asks by a socket from [`open_probe`] of the address's family, for callers that may have no free
/// descriptor. `None`: unknown. After a positive answer the socket is bound: it can still rule addresses out,
/// but not confirm them.
#[must_use]
pub fn is_own_address_by(probe: BorrowedFd<'_>, ip: IpAddr) -> Option<bool> {
    match ask(probe, ip.to_canonical()) {
        BindAnswer::Yes => Some(true),
        BindAnswer::No => Some(false),
        BindAnswer::Unsaid => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BindAnswer {
    Yes,
    No,
    /// bind() is forbidden here (a control group's SocketBindDeny=), or can't judge this kind of address.
    Unsaid,
}

impl BindAnswer {
    fn is_own(self, ip: IpAddr) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            Self::Unsaid => is_own_by_route(ip),
        }
    }
}

/// Without IPv6 no IPv6 address exists.
fn is_own_where_no_socket(errno: Errno) -> bool {
    errno != Errno::AFNOSUPPORT
}

fn open(ip: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn ask(probe: BorrowedFd<'_>, ip: IpAddr) -> BindAnswer {
    if let IpAddr::V6(v6) = ip
        && v6.is_unicast_link_local()
    {
        // bind() wants to know the interface.
        return listed(v6).map_or(BindAnswer::Unsaid, |is_listed| {
            if is_listed { BindAnswer::Yes } else { BindAnswer::No }
        });
    }
    match bind(probe, &SocketAddr::new(ip, 0)) {
        Err(Errno::ADDRNOTAVAIL) => BindAnswer::No,
        Err(_) => BindAnswer::Unsaid,
        Ok(()) => confirm(probe, ip),
    }
}

/// With `ip_nonlocal_bind`, bind() accepts every address.
fn confirm(probe: BorrowedFd<'_>, ip: IpAddr) -> BindAnswer {
    let is_own = match ip {
        // Linux's ip_route_output_key_hash_rcu() finds no route for a source that no device has, whatever
        // bind() accepted.
        IpAddr::V4(_) => {
            let answer = connect(probe, &SocketAddr::new(ip, 9));
            !matches!(answer, Err(Errno::NETUNREACH | Errno::INVAL))
        }
        IpAddr::V6(v6) => listed(v6).unwrap_or(true),
    };
    if is_own { BindAnswer::Yes } else { BindAnswer::No }
}

/// Whether the list of this host's IPv6 addresses contains it; `None`: there is no list.
fn listed(ip: Ipv6Addr) -> Option<bool> {
    let list = read("/proc/thread-self/net/if_inet6").ok()?;
    let wanted = format!("{:032x}", ip.to_bits());
    Some(list.split(|byte| *byte == b'\n').any(|line| line.starts_with(wanted.as_bytes())))
}

/// By direct system calls: in another program's process, `open` and `read` may be that program's functions.
fn read(path: &str) -> Result<Vec<u8>, Errno> {
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut found, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match retry_on_intr(|| rustix::io::read(&file, &mut piece))? {
            0 => return Ok(found),
            count => found.extend_from_slice(&piece[..count]),
        }
    }
}

/// A packet to an own address leaves from that address or, if it is a secondary one, from another.
fn is_own_by_route(ip: IpAddr) -> bool {
    let local = || {
        let probe = open(ip)?;
        connect(&probe, &SocketAddr::new(ip, 9))?;
        SocketAddr::try_from(getsockname(probe.as_fd())?)
    };
    local().is_ok_and(|local| local.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_own_and_documentation_addresses_are_not() {
        for is_own in [is_own_address, is_own_address_once] {
            // Twice: the state after an answer must not change the next one.
            for _ in 0..2 {
                for (ip, wanted) in [
                    ("127.0.0.1", true),
                    ("127.8.8.8", true),
                    ("::ffff:127.0.0.1", true),
                    ("192.0.2.1", false),
                    ("255.255.255.254", false),
                    ("2001:db8::1", false),
                    ("fe80::dead:beef:1:2", false),
                ] {
                    assert_eq!(is_own(ip.parse().unwrap()), wanted, "{ip}");
                }
            }
        }
    }

    #[test]
    fn a_kept_probe_says_yes_once() {
        let probe = open_probe(false).unwrap();
        for _ in 0..2 {
            assert_eq!(is_own_address_by(probe.as_fd(), "192.0.2.1".parse().unwrap()), Some(false));
        }
        assert_eq!(is_own_address_by(probe.as_fd(), "127.0.0.1".parse().unwrap()), Some(true));
        assert_eq!(is_own_address_by(probe.as_fd(), "127.0.0.1".parse().unwrap()), None);
        assert_eq!(is_own_address_by(probe.as_fd(), "192.0.2.1".parse().unwrap()), Some(false));
    }

    #[test]
    fn the_route_tells_where_bind_may_not() {
        assert!(is_own_by_route("127.0.0.1".parse().unwrap()));
        assert!(!is_own_by_route("192.0.2.1".parse().unwrap()));
    }
}
