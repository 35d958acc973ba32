//! Connections to backends, from the client's address where one is given.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use socket2::{Domain, Socket, Type};
use truepeer_relay::io::{ConnectError, Upstream};
use truepeer_sys::{CallError, Named as _, socket};

use super::{Reactor, TcpStream};

/// Connects as `upstream` says, and waits until the backend has accepted. One attempt; no time-out.
///
/// # Errors
/// [`ConnectError::TupleInUse`] if the client's tuple is taken; else the call that failed, as the relay names it.
pub async fn connect(reactor: &Reactor, upstream: &Upstream) -> Result<TcpStream, ConnectError> {
    let socket = dial(upstream)?;
    let stream = mio::net::TcpStream::from_std(std::net::TcpStream::from(socket));
    let stream = TcpStream::connecting(reactor, stream).named("epoll_ctl")?;
    stream.connected().await.named("connect")?;
    Ok(stream)
}

/// Begins to connect.
fn dial(upstream: &Upstream) -> Result<Socket, ConnectError> {
    let socket = Socket::new(Domain::for_address(upstream.backend), Type::STREAM, None).named("socket")?;
    socket.set_nonblocking(true).named("fcntl(O_NONBLOCK)")?;
    best_effort(socket.set_tcp_nodelay(true).named("setsockopt(TCP_NODELAY)"))?;
    best_effort(socket.set_out_of_band_inline(true).named("setsockopt(SO_OOBINLINE)"))?;
    if upstream.mark != 0 {
        best_effort(socket::set_mark(socket.as_fd(), upstream.mark))?;
    }
    if let Some(source) = upstream.source {
        bind_as(&socket, source)?;
    }
    match socket.connect(&upstream.backend.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        // connect(2): the tuple exists already, or no port is left that would make a new one.
        Err(error) if is_in_use(&error) => return Err(ConnectError::TupleInUse),
        answer => answer.named("connect")?,
    }
    Ok(socket)
}

fn bind_as(socket: &Socket, source: SocketAddr) -> Result<(), ConnectError> {
    best_effort(socket::set_transparent(socket.as_fd(), source))?;
    if source.port() == 0 {
        // Linux < 4.2 reserves a port at bind() instead: fewer of them, nothing worse.
        let _ = socket::set_bind_address_no_port(socket.as_fd());
    } else {
        // Several backends may be reached from one client port, and a port in TIME_WAIT may be used again.
        best_effort(socket.set_reuse_address(true).named("setsockopt(SO_REUSEADDR)"))?;
    }
    match socket.bind(&source.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Err(ConnectError::TupleInUse),
        bound => Ok(bound.named("bind")?),
    }
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE))
}

/// A network stack in user space may not know an option: then it does without. The kernel's "no" (EPERM) stands.
fn best_effort(set: Result<(), CallError>) -> Result<(), CallError> {
    let is_unknown = |error: &CallError| {
        matches!(error.errno.raw_os_error(), libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::ENOSYS)
    };
    match set {
        Err(error) if is_unknown(&error) => Ok(()),
        set => set,
    }
}
