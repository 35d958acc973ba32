//! UDP sockets and their options.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::error::{CallError, Named};

/// Opens a non-blocking UDP socket of the address's family.
///
/// # Errors
/// EMFILE, ENFILE, ENOBUFS, or EAFNOSUPPORT where the family is disabled.
pub fn udp_socket(address: SocketAddr) -> Result<OwnedFd, CallError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::DGRAM, flags, None).named("socket")
}

/// Lets every datagram say what it was sent to (IP_PKTINFO), and for TPROXY also to which port
/// (IP_RECVORIGDSTADDR).
///
/// # Errors
/// As setsockopt(2).
pub fn enable_arrival_reports(
    socket: BorrowedFd<'_>,
    address: SocketAddr,
    original_destination: bool,
) -> Result<(), CallError> {
    if address.is_ipv6() {
        set(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1).named("setsockopt(IPV6_RECVPKTINFO)")?;
    } else {
        set(socket, libc::SOL_IP, libc::IP_PKTINFO, 1).named("setsockopt(IP_PKTINFO)")?;
    }
    if original_destination && address.is_ipv6() {
        set(socket, libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)
            .named("setsockopt(IPV6_RECVORIGDSTADDR)")?;
    }
    if original_destination {
        // A dual-stack socket reports the IPv4 destination of an IPv4 datagram by this one.
        set(socket, libc::SOL_IP, libc::IP_RECVORIGDSTADDR, 1).named("setsockopt(IP_RECVORIGDSTADDR)")?;
    }
    Ok(())
}

/// Lets the kernel hand over several datagrams of equal size at once (UDP_GRO, Linux 5.0).
///
/// # Errors
/// ENOPROTOOPT on older kernels: then they come one by one.
pub fn enable_gro(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1).named("setsockopt(UDP_GRO)")
}

/// Has the kernel hand over each datagram by itself again, and merge none of them before tc.
///
/// # Errors
/// ENOPROTOOPT on older kernels: they merge none.
pub fn disable_gro(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 0).named("setsockopt(UDP_GRO)")
}

/// Whether the kernel cuts large buffers into datagrams (UDP_SEGMENT, Linux 4.18).
#[must_use]
pub fn supports_segmentation(socket: BorrowedFd<'_>) -> bool {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Asks for buffers of `bytes` in both directions: beyond the system's limit with CAP_NET_ADMIN, else up to
/// it (net.core.rmem_max, net.core.wmem_max). Returns whether the socket has them. Larger ones stay as they
/// are.
pub fn grow_buffers(socket: BorrowedFd<'_>, bytes: usize) -> bool {
    if has_buffers(socket, bytes) || force_buffers(socket, bytes).is_ok() {
        return true;
    }
    let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    has_buffers(socket, bytes)
}

/// Gives a socket buffers of `bytes` in both directions, beyond the system's limit.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN in the network namespace's user namespace.
pub fn force_buffers(socket: BorrowedFd<'_>, bytes: usize) -> Result<(), CallError> {
    sockopt::set_socket_recv_buffer_size_force(socket, bytes).named("setsockopt(SO_RCVBUFFORCE)")?;
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value).named("setsockopt(SO_SNDBUFFORCE)")
}

fn has_buffers(socket: BorrowedFd<'_>, bytes: usize) -> bool {
    // The kernel reports twice of what was asked for: its own overhead is part of it (socket(7)).
    [sockopt::socket_recv_buffer_size(socket), sockopt::socket_send_buffer_size(socket)]
        .iter()
        .all(|size| size.is_ok_and(|size| size >= 2 * bytes))
}

/// Makes the buffers of some sockets as large as in [`grow_buffers`], after it has returned.
pub type GrowLater = dyn Fn(&[BorrowedFd<'_>], usize) + Send + Sync;

static OTHER: OnceLock<Box<GrowLater>> = OnceLock::new();

/// Names another process that grows buffers in [`grow_later`]. Only the first call has an effect.
pub fn grow_later_by(other: Box<GrowLater>) {
    let _ = OTHER.set(other);
}

/// Has the process of [`grow_later_by`] grow buffers for which [`grow_buffers`] lacked the capability, if
/// there is one. Never waits for it.
pub fn grow_later(sockets: &[BorrowedFd<'_>], bytes: usize) {
    if let Some(other) = OTHER.get().filter(|_| !sockets.is_empty()) {
        other(sockets, bytes);
    }
}

pub(crate) fn grow_recv_buffer(socket: BorrowedFd<'_>, bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
}

/// Makes a classic BPF program choose the socket of the SO_REUSEPORT group, by the order in which they were
/// bound (SO_ATTACH_REUSEPORT_CBPF, Linux 4.5). It sees the UDP payload.
///
/// # Errors
/// EINVAL for a program that the kernel's checker refuses.
pub fn set_steering(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> Result<(), CallError> {
    let program = libc::sock_fprog {
        len: libc::c_ushort::try_from(program.len()).unwrap_or(0),
        filter: program.as_ptr().cast_mut(),
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
        .named("setsockopt(SO_ATTACH_REUSEPORT_CBPF)")
}

/// The path that a connected socket's datagrams take, as far as it is known, and how they leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The longest packet (IP_MTU, IPV6_MTU).
    pub mtu: u32,
    /// TTL or hop limit.
    pub hops: u8,
    /// Whether routers may cut datagrams into fragments: IPv4 without DF.
    pub may_be_cut: bool,
}

impl Path {
    /// That of a socket.
    ///
    /// # Errors
    /// ENOTCONN if it is not connected.
    pub fn of(socket: BorrowedFd<'_>, is_ipv4: bool) -> Result<Self, CallError> {
        let (level, mtu, hops) = if is_ipv4 {
            (libc::SOL_IP, libc::IP_MTU, libc::IP_TTL)
        } else {
            (libc::SOL_IPV6, libc::IPV6_MTU, libc::IPV6_UNICAST_HOPS)
        };
        let mtu = get(socket, level, mtu).named("getsockopt(IP_MTU)")?;
        let hops = get(socket, level, hops).named("getsockopt(IP_TTL)")?;
        let is_cut = || get(socket, libc::SOL_IP, libc::IP_MTU_DISCOVER).named("getsockopt(IP_MTU_DISCOVER)");
        Ok(Self {
            mtu: u32::try_from(mtu).unwrap_or(0),
            hops: u8::try_from(hops).unwrap_or(u8::MAX),
            may_be_cut: is_ipv4 && is_cut()? == libc::IP_PMTUDISC_DONT,
        })
    }

    /// That from this host's address to another one.
    ///
    /// # Errors
    /// If there is no route.
    pub fn between(local: IpAddr, remote: SocketAddr) -> Result<Self, CallError> {
        let socket = udp_socket(remote)?;
        rustix::net::bind(&socket, &SocketAddr::new(local, 0)).named("bind")?;
        rustix::net::connect(&socket, &remote).named("connect")?;
        Self::of(socket.as_fd(), remote.is_ipv4())
    }
}

fn get(socket: BorrowedFd<'_>, level: i32, option: i32) -> std::io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = 4;
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`, and the length itself; both are
    // live locals.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(value) }
}

fn set<T: Copy>(socket: BorrowedFd<'_>, level: i32, option: i32, value: T) -> std::io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(std::io::Error::other)?;
    // SAFETY: pointer and length name exactly the local `value`; the kernel copies it (and the program that a
    // sock_fprog leads to, which the caller borrows) before it returns.
    let answer = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// An upgrade inherits buffers that the new process could not have by itself.
    #[test]
    fn buffers_that_are_large_enough_stay_as_they_are() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let size = || [sockopt::socket_recv_buffer_size(&socket), sockopt::socket_send_buffer_size(&socket)];
        assert!(grow_buffers(socket.as_fd(), 64 << 10));
        let before = size();
        assert!(grow_buffers(socket.as_fd(), 16 << 10));
        assert_eq!(size(), before);
    }
}
