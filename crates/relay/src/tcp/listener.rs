//! Listening sockets: opened or inherited, shared among workers, and accepted from without ever dying.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use truepeer_sys::CallError;
use truepeer_sys::socket::{ListenOptions, listen_tcp};

use crate::settings::ListenerSettings;

/// A sender that has answered nothing for so long is asked; after nine questions (net.ipv4.tcp_keepalive_probes) without
/// an answer its session ends.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Connections the kernel completes before we accept them; net.core.somaxconn caps it.
const BACKLOG: i32 = 65_535;

/// A socket that can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}: {error}{}", advice(.error))]
pub struct ListenError {
    /// Where.
    pub address: SocketAddr,
    /// What failed.
    pub error: CallError,
}

fn advice(error: &CallError) -> &'static str {
    match (error.call, error.errno) {
        ("bind", Errno::ADDRINUSE) => "; another program has this port (ss -ltnp shows which)",
        ("bind", Errno::ADDRNOTAVAIL) => "; no interface of this machine has this address",
        ("bind", Errno::ACCESS) => "; ports below 1024 need CAP_NET_BIND_SERVICE or root",
        (call, Errno::PERM) if call.contains("TRANSPARENT") => {
            "; --listen-transparent needs CAP_NET_RAW or CAP_NET_ADMIN"
        }
        ("socket", Errno::AFNOSUPPORT) => "; this machine has no IPv6",
        _ => "",
    }
}

/// The sockets of one listener: those it inherits, or new ones.
///
/// # Errors
/// The first socket that can't be opened.
pub(crate) fn open(
    settings: &ListenerSettings,
    inherited: Vec<OwnedFd>,
) -> Result<Vec<Arc<OwnedFd>>, ListenError> {
    let sockets = if inherited.is_empty() { open_new(settings)? } else { inherited };
    sockets.iter().for_each(prepare);
    Ok(sockets.into_iter().map(Arc::new).collect())
}

/// What accepted connections have from their listener: no waiting for more bytes than the sender sent, urgent bytes that
/// stay in the stream, where they would be lost otherwise (tcp(7)), and an end for senders that have vanished.
fn prepare(socket: &OwnedFd) {
    // A relay without is slower, and less than perfect to telnet.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_oobinline(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE);
}

fn open_new(settings: &ListenerSettings) -> Result<Vec<OwnedFd>, ListenError> {
    let options = ListenOptions {
        reuse_port: settings.sockets > 1,
        transparent: settings.transparent,
        backlog: BACKLOG,
    };
    (0..settings.sockets.max(1))
        .map(|_| listen_tcp(settings.address, options))
        .collect::<Result<_, _>>()
        .map_err(|error| ListenError { address: settings.address, error })
}

/// What accepting gave.
pub(crate) enum Accepted {
    Connection(OwnedFd, SocketAddr),
    /// None is waiting.
    Nobody,
    /// This one was gone before we came, or is refused by the system; the next one may be well.
    Lost,
    /// The system is out of something: trying at once again would spin.
    OutOf(Errno),
}

/// Takes one connection.
pub(crate) fn accept(listener: &OwnedFd) -> Accepted {
    match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((socket, address)) => match address.map(SocketAddr::try_from) {
            Some(Ok(address)) => Accepted::Connection(socket, address),
            _ => Accepted::Lost,
        },
        Err(Errno::AGAIN) => Accepted::Nobody,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => Accepted::OutOf(errno),
        Err(_) => Accepted::Lost,
    }
}
