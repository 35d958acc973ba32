//! Socket options and socket making: transparent binding, marks, and what is still unsent.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use socket2::SockRef;

use crate::error::{CallError, Named};

/// Opens a non-blocking TCP socket of the address's family.
///
/// # Errors
/// EMFILE, ENFILE, ENOBUFS, or EAFNOSUPPORT where the family is disabled.
pub fn tcp_socket(address: SocketAddr) -> Result<OwnedFd, CallError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).named("socket")
}

/// Lets `socket` bind to, and be reached at, addresses that are not this machine's (IP_TRANSPARENT).
///
/// # Errors
/// EPERM without CAP_NET_RAW or CAP_NET_ADMIN in the network namespace's user namespace.
pub fn set_transparent(socket: BorrowedFd<'_>, address: SocketAddr) -> Result<(), CallError> {
    let socket = SockRef::from(&socket);
    if address.is_ipv4() {
        socket.set_ip_transparent_v4(true).named("setsockopt(IP_TRANSPARENT)")
    } else {
        socket.set_ip_transparent_v6(true).named("setsockopt(IPV6_TRANSPARENT)")
    }
}

/// Whether this process's descriptor of this number is an IPv6 socket that takes no IPv4 (IPV6_V6ONLY).
#[must_use]
pub fn is_v6_only(number: RawFd) -> bool {
    let mut is_only: libc::c_int = 0;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the option is one C int; the kernel writes at most `length` bytes, which is the size of the
    // local. For a number that is no open descriptor, or none of an IPv6 socket, it fails and writes nothing.
    let answer = unsafe {
        libc::getsockopt(
            number,
            libc::IPPROTO_IPV6,
            libc::IPV6_V6ONLY,
            (&raw mut is_only).cast(),
            &raw mut length,
        )
    };
    answer == 0 && is_only != 0
}

/// The user at the other end of a unix socket (SO_PEERCRED). The number of a process outside this PID
/// namespace is 0, which rustix's type for these credentials can't hold.
///
/// # Errors
/// If getsockopt(2) fails.
pub fn peer_user(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length: libc::socklen_t = 12;
    // SAFETY: the option is one `ucred`, three numbers of four bytes; the kernel writes at most `length`
    // bytes, which is the size of the local.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(std::io::Error::last_os_error()).named("getsockopt(SO_PEERCRED)");
    }
    Ok(peer.uid)
}

/// Puts firewall mark `mark` on everything `socket` sends (SO_MARK).
///
/// # Errors
/// EPERM without CAP_NET_ADMIN (or, since Linux 5.17, CAP_NET_RAW).
pub fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> Result<(), CallError> {
    SockRef::from(&socket).set_mark(mark).named("setsockopt(SO_MARK)")
}

/// Limits the segments of both directions to those that fit through a path of this MTU (TCP_MAXSEG). Call it
/// before connect().
///
/// # Errors
/// If a system call fails.
pub fn limit_segments(socket: BorrowedFd<'_>, mtu: u32, is_ipv4: bool) -> Result<(), CallError> {
    /// The kernel takes values from TCP_MIN_MSS to MAX_TCP_WINDOW.
    const SIZES: std::ops::RangeInclusive<u32> = 88..=32767;
    let size = mtu.saturating_sub(if is_ipv4 { 40 } else { 60 });
    if !SIZES.contains(&size) {
        return Ok(());
    }
    SockRef::from(&socket).set_tcp_mss(size).named("setsockopt(TCP_MAXSEG)")
}

/// Leaves the choice of a port at bind() with port 0 to connect(), which needs only an unused tuple, not an
/// unused port (IP_BIND_ADDRESS_NO_PORT, Linux 4.2; the option serves IPv6 sockets too).
///
/// # Errors
/// ENOPROTOOPT on older kernels.
pub fn set_bind_address_no_port(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    let on: libc::c_int = 1;
    // SAFETY: the option takes one c_int; the pointer and the length name exactly that local, which outlives
    // the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            INT_LEN,
        )
    };
    last_result(answer).named("setsockopt(IP_BIND_ADDRESS_NO_PORT)")
}

/// Lets `listener` keep a connection to itself until its first data has come, or for about as long as `wait`
/// (rounded up to 1, 3, 7 s…): then it is given out without any (TCP_DEFER_ACCEPT).
///
/// # Errors
/// ENOPROTOOPT on a socket that isn't TCP; EOPNOTSUPP on an MPTCP one before Linux 5.17.
pub fn set_defer_accept(listener: BorrowedFd<'_>, wait: Duration) -> Result<(), CallError> {
    let seconds = libc::c_int::try_from(wait.as_secs().max(1)).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option takes one c_int; the pointer and the length name exactly that local, which outlives
    // the call.
    let answer = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            INT_LEN,
        )
    };
    last_result(answer).named("setsockopt(TCP_DEFER_ACCEPT)")
}

/// Binds an unconnected TCP socket to `address` even if another socket listens on its port, on this address
/// or on every one: for a socket that will be connected, and so is told apart by both its ends. Its
/// SO_REUSEADDR is set afterwards.
///
/// Linux's inet_csk_get_port() makes no exception for that by SO_REUSEADDR, but one for sockets under repair
/// (SK_FORCE_REUSE); what a socket must not share, its tuple, connect() judges.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN in the network namespace's user namespace, if [`share_ports_by`] has named
/// nobody who has it; what bind(2) says.
pub fn bind_beside_listeners(socket: BorrowedFd<'_>, address: SocketAddr) -> Result<(), CallError> {
    match OTHER.get() {
        Some(other) => other(socket, address).named("bind by the keeper"),
        None => bind_under_repair(socket, address),
    }
}

/// Binds a socket as [`bind_beside_listeners`] does.
pub type BindBeside = dyn Fn(BorrowedFd<'_>, SocketAddr) -> Result<(), Errno> + Send + Sync;

static OTHER: OnceLock<Box<BindBeside>> = OnceLock::new();

/// Names another process that binds sockets in [`bind_beside_listeners`], because this one lacks the
/// capability. Only the first call has an effect.
pub fn share_ports_by(other: Box<BindBeside>) {
    let _ = OTHER.set(other);
}

fn bind_under_repair(socket: BorrowedFd<'_>, address: SocketAddr) -> Result<(), CallError> {
    set_repair(socket, true)?;
    let bound = rustix::net::bind(socket, &address).named("bind");
    // Nothing was sent or received: leaving repair does nothing else than to clear SO_REUSEADDR.
    set_repair(socket, false)?;
    rustix::net::sockopt::set_socket_reuseaddr(socket, true).named("setsockopt(SO_REUSEADDR)")?;
    bound
}

fn set_repair(socket: BorrowedFd<'_>, is_on: bool) -> Result<(), CallError> {
    let value = libc::c_int::from(is_on);
    // SAFETY: the option takes one c_int; the pointer and the length name exactly that local, which outlives
    // the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const value).cast(),
            INT_LEN,
        )
    };
    last_result(answer).named("setsockopt(TCP_REPAIR)")
}

/// Whether the TCP socket is neither connected, nor about to be, nor listening.
#[must_use]
pub fn is_unconnected(socket: BorrowedFd<'_>) -> bool {
    /// The kernel's enum tcp_state.
    const TCP_CLOSE: u8 = 7;
    let mut info = [0_u8; 8];
    let mut length: libc::socklen_t = 8;
    // SAFETY: TCP_INFO writes at most as many bytes as the length says, which is that of the local.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    answer == 0 && info[0] == TCP_CLOSE
}

/// Begins to connect, and gives the kernel the first bytes to send: with the SYN, or as soon as there is a
/// connection (MSG_FASTOPEN, without a cookie: Linux 4.15). Never waits.
///
/// # Errors
/// EOPNOTSUPP where net.ipv4.tcp_fastopen forbids it; EINPROGRESS if it connects but the bytes were not
/// taken; else as connect(2).
pub fn send_with_syn(socket: BorrowedFd<'_>, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
    /// linux/tcp.h
    const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;
    let on: libc::c_int = 1;
    // SAFETY: the option takes one c_int; the pointer and the length name exactly that local, which outlives
    // the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_FASTOPEN_NO_COOKIE,
            (&raw const on).cast(),
            INT_LEN,
        )
    };
    if answer != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
    match rustix::net::sendto(socket, bytes, flags | SendFlags::NOSIGNAL | SendFlags::DONTWAIT, &to)? {
        sent if sent == bytes.len() => Ok(()),
        // No segment is shorter than a header.
        _ => Err(Errno::MSGSIZE),
    }
}

/// Bytes written to the TCP socket that its other end has not acknowledged yet (SIOCOUTQ).
///
/// # Errors
/// EINVAL on a socket that is not connected or not TCP.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Result<usize, CallError> {
    let (mut bytes, mut length): (libc::c_int, u32) = (0, INT_LEN);
    // VPP's library takes ioctl(2) over and reads one more argument, a pointer to the buffer's length (its
    // ldp.c). The kernel does not read it.
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one c_int through the first pointer, and VPP's
    // library reads one u32 through the second; both are those of live locals.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes, &raw mut length) };
    last_result(answer).named("ioctl(SIOCOUTQ)")?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// The length of an option that is one C int.
const INT_LEN: libc::socklen_t = 4;

fn last_result(answer: libc::c_int) -> std::io::Result<()> {
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// The address that `socket` is bound to.
///
/// # Errors
/// EOPNOTSUPP (as [`Errno::AFNOSUPPORT`]) if it is not an internet socket.
pub fn local_address(socket: BorrowedFd<'_>) -> Result<SocketAddr, CallError> {
    let address = rustix::net::getsockname(socket).named("getsockname")?;
    SocketAddr::try_from(address).map_err(|_| Errno::AFNOSUPPORT).named("getsockname")
}

/// The address that `socket` is connected to.
///
/// # Errors
/// ENOTCONN; EOPNOTSUPP (as [`Errno::AFNOSUPPORT`]) if it is not an internet socket.
pub fn peer_address(socket: BorrowedFd<'_>) -> Result<SocketAddr, CallError> {
    let address = rustix::net::getpeername(socket).named("getpeername")?;
    address
        .and_then(|address| SocketAddr::try_from(address).ok())
        .ok_or(Errno::AFNOSUPPORT)
        .named("getpeername")
}

/// The device that `socket` is bound to, 0 if to none (SO_BINDTOIFINDEX, Linux 5.0): bound by a program, as
/// its listener was, or by the kernel, to the device of a link-local peer, or to a VRF.
#[must_use]
pub fn bound_device(socket: BorrowedFd<'_>) -> u32 {
    const SO_BINDTOIFINDEX: libc::c_int = 62;
    let mut device = [0; 4];
    if read_option(socket, SO_BINDTOIFINDEX, &mut device) { u32::from_ne_bytes(device) } else { 0 }
}

/// The cookie of the network namespace that `socket` belongs to (SO_NETNS_COOKIE, Linux 5.14).
#[must_use]
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = [0; 8];
    read_option(socket, SO_NETNS_COOKIE, &mut cookie).then(|| u64::from_ne_bytes(cookie))
}

/// Reads an option of SOL_SOCKET that is exactly as long as `value`.
fn read_option(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut [u8]) -> bool {
    let Ok(mut length) = libc::socklen_t::try_from(value.len()) else { return false };
    let wanted = length;
    // SAFETY: the kernel writes at most `length` bytes, which is the length of the slice, and no longer than
    // the call lasts.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    answer == 0 && length == wanted
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use super::peer_user;

    /// The variable that makes the test's other process connect to this path.
    const CONNECT: &str = "PEER_USER_CONNECTS";

    /// The other process is in a PID namespace that does not see this one.
    #[test]
    fn the_user_of_a_peer_in_another_pid_namespace_is_known() {
        if let Some(path) = std::env::var_os(CONNECT) {
            let stream = UnixStream::connect(path).unwrap();
            assert_eq!(peer_user(stream.as_fd()), Ok(0));
            return;
        }
        let path = std::env::temp_dir().join(format!("peer-user-{}", std::process::id()));
        let _listener = UnixListener::bind(&path).unwrap();
        let done = Command::new("unshare")
            .args(["-U", "-r", "-p", "-f"])
            .arg(std::env::current_exe().unwrap())
            .arg("socket::tests::the_user_of_a_peer_in_another_pid_namespace_is_known")
            .env(CONNECT, &path)
            .output()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
