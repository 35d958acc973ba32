//! Listening sockets: opening, preparing and inheriting them.
//!
//! All system calls go through libc, so that a preloaded network stack in user space can take them over.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use truepeer_sys::{CallError, Named as _, socket};

/// TCP keepalive: the idle time before the first probe, and between probes. After nine unanswered probes
/// (net.ipv4.tcp_keepalive_probes) the kernel ends the connection.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The backlog: connections that the kernel completes before accept(). net.core.somaxconn caps it.
const BACKLOG: i32 = 65_535;

/// A socket that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}: {error}{}", advice(.error))]
pub struct ListenError {
    /// Its address.
    pub address: SocketAddr,
    /// The error.
    pub error: CallError,
}

fn advice(error: &CallError) -> &'static str {
    match (error.call, error.errno) {
        ("bind", Errno::ADDRINUSE) => "; another program uses this port (ss -ltnp shows which)",
        ("bind", Errno::ADDRNOTAVAIL) => "; no interface of this machine has this address",
        ("bind", Errno::ACCESS) => "; ports below 1024 need CAP_NET_BIND_SERVICE or root",
        (call, Errno::PERM) if call.contains("TRANSPARENT") => {
            "; a transparent listener needs CAP_NET_RAW or CAP_NET_ADMIN"
        }
        ("socket", Errno::AFNOSUPPORT) => "; this machine has no IPv6",
        (BY_OTHER, _) => "; the process that opens sockets has ended or does not answer: restart truepeer",
        _ => "",
    }
}

/// The options of a listening socket.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListenOptions {
    /// SO_REUSEPORT: several sockets on one address, over which the kernel spreads connections (Linux 3.9).
    pub reuse_port: bool,
    /// IP_TRANSPARENT: connections that TPROXY redirects here keep their original destination.
    pub transparent: bool,
    /// IPV6_V6ONLY: another socket has the port for IPv4.
    pub v6_only: bool,
}

/// Another process that listens for this one, which may not call listen(2).
pub trait OtherListens: Send + Sync {
    /// As [`listen`].
    ///
    /// # Errors
    /// The system call that failed there, or [`BY_OTHER`].
    fn listen(&self, address: SocketAddr, options: ListenOptions) -> Result<OwnedFd, CallError>;

    /// As [`listen_locally`].
    ///
    /// # Errors
    /// The system call that failed there, or [`BY_OTHER`].
    fn listen_locally(&self, socket: BorrowedFd<'_>, backlog: i32) -> Result<(), CallError>;
}

/// The call of the error if the other process has ended or does not answer.
pub const BY_OTHER: &str = "asking for a listening socket";

static OTHER: OnceLock<Box<dyn OtherListens>> = OnceLock::new();

/// Names another process that listens from now on. Only the first call has an effect.
pub fn listen_by(other: Box<dyn OtherListens>) {
    let _ = OTHER.set(other);
}

/// Listens on a bound unix socket.
///
/// # Errors
/// If listen(2) fails.
pub fn listen_locally(socket: BorrowedFd<'_>, backlog: i32) -> Result<(), CallError> {
    match OTHER.get() {
        Some(other) => other.listen_locally(socket, backlog),
        None => SockRef::from(&socket).listen(backlog).named("listen"),
    }
}

/// Opens a non-blocking listening TCP socket on `address`.
///
/// # Errors
/// The system call that failed: usually EADDRINUSE from bind, or EPERM from IP_TRANSPARENT without
/// CAP_NET_RAW or CAP_NET_ADMIN.
pub fn listen(address: SocketAddr, options: ListenOptions) -> Result<OwnedFd, ListenError> {
    let opened = match OTHER.get() {
        Some(other) => other.listen(address, options),
        None => open(address, options),
    };
    opened.map_err(|error| ListenError { address, error })
}

fn open(address: SocketAddr, options: ListenOptions) -> Result<OwnedFd, CallError> {
    let kind = Type::STREAM.nonblocking();
    let listener = Socket::new(Domain::for_address(address), kind, None).named("socket")?;
    listener.set_reuse_address(true).named("setsockopt(SO_REUSEADDR)")?;
    if options.reuse_port {
        listener.set_reuse_port(true).named("setsockopt(SO_REUSEPORT)")?;
    }
    if options.v6_only && address.is_ipv6() {
        listener.set_only_v6(true).named("setsockopt(IPV6_V6ONLY)")?;
    } else if address.is_ipv6() && address.ip().is_unspecified() {
        // `[::]` takes IPv4, too, whatever net.ipv6.bindv6only says. Another stack may lack the option.
        let _ = listener.set_only_v6(false);
    }
    if options.transparent {
        socket::set_transparent(listener.as_fd(), address)?;
    }
    listener.bind(&address.into()).named("bind")?;
    listener.listen(BACKLOG).named("listen")?;
    Ok(listener.into())
}

/// Sets the options that accepted connections inherit: no Nagle delay, urgent bytes kept in the stream
/// (otherwise they would be lost, tcp(7)), and keepalive, which ends connections of vanished senders. Errors
/// are ignored because another network stack may lack these options.
pub fn prepare(socket: &OwnedFd) {
    let socket = SockRef::from(socket);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_out_of_band_inline(true);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE));
}

/// Takes the sockets from `inherited` that are bound to `address` and are of `kind`. Stream sockets must
/// listen.
pub fn take_inherited(inherited: &mut Vec<OwnedFd>, address: SocketAddr, kind: SocketType) -> Vec<OwnedFd> {
    let is_meant = |socket: &mut OwnedFd| {
        socket::local_address(socket.as_fd()).is_ok_and(|bound| bound == address)
            && sockopt::socket_type(&*socket).is_ok_and(|actual| actual == kind)
            && (kind != SocketType::STREAM || sockopt::socket_acceptconn(&*socket).unwrap_or(false))
    };
    inherited.extract_if(.., is_meant).collect()
}

/// Whether an error of accept() concerns one connection only. All other errors (no descriptors, no memory, a
/// bad socket) persist, and an immediate retry would spin.
#[must_use]
pub fn concerns_one_connection(errno: Errno) -> bool {
    // accept(2): errors pending on the new connection. A firewall causes EPERM, and EPROTO is another stack's
    // ECONNABORTED.
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::INTR
            | Errno::PERM
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::NONET
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::TIMEDOUT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_cannot_be_opened_is_named_with_advice() {
        let rows = [
            ("bind", libc::EADDRINUSE, "; another program uses this port (ss -ltnp shows which)"),
            ("bind", libc::EADDRNOTAVAIL, "; no interface of this machine has this address"),
            ("bind", libc::EACCES, "; ports below 1024 need CAP_NET_BIND_SERVICE or root"),
            (
                "setsockopt(IP_TRANSPARENT)",
                libc::EPERM,
                "; a transparent listener needs CAP_NET_RAW or CAP_NET_ADMIN",
            ),
            ("socket", libc::EAFNOSUPPORT, "; this machine has no IPv6"),
            ("listen", libc::EADDRINUSE, ""),
        ];
        for (call, errno, advice) in rows {
            let error = CallError { call, errno: Errno::from_raw_os_error(errno) };
            let address = "192.0.2.1:80".parse().expect("an address");
            let told = ListenError { address, error }.to_string();
            assert_eq!(told, format!("can't listen on 192.0.2.1:80: {error}{advice}"));
        }
    }

    #[test]
    fn an_address_is_shared_only_if_all_its_sockets_agree() {
        let sharing = ListenOptions { reuse_port: true, ..ListenOptions::default() };
        let first = listen("127.0.0.1:0".parse().expect("an address"), sharing).expect("a socket");
        let address = socket::local_address(first.as_fd()).expect("its address");
        let second = listen(address, sharing).expect("it is shared");
        let error = listen(address, ListenOptions::default()).expect_err("it is not shared with this socket");
        assert_eq!((error.error.call, error.error.errno), ("bind", Errno::ADDRINUSE));
        drop((first, second));
    }

    #[test]
    fn persistent_errors_concern_all_connections() {
        let concerns_one = |errno| concerns_one_connection(Errno::from_raw_os_error(errno));
        for errno in [libc::ECONNABORTED, libc::EPERM, libc::EHOSTUNREACH] {
            assert!(concerns_one(errno), "{errno}");
        }
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EBADF, libc::EINVAL, libc::EIO] {
            assert!(!concerns_one(errno), "{errno}");
        }
    }
}
