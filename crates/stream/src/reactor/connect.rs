//! Connecting to backends.

use truepeer_session::connect_as::{ConnectError, Upstream, connect_as};
use truepeer_sys::Named as _;

use super::event_loop::Reactor;
use super::stream::TcpStream;

/// Connects as `upstream` specifies, and waits until the backend has accepted. One attempt, without a
/// time-out.
///
/// # Errors
/// [`ConnectError::TupleInUse`] if the client's tuple is in use, otherwise the system call that failed.
pub async fn connect(reactor: &Reactor, upstream: &Upstream) -> Result<TcpStream, ConnectError> {
    let socket = std::net::TcpStream::from(connect_as(upstream)?);
    let stream = mio::net::TcpStream::from_std(socket);
    let stream = TcpStream::connecting(reactor, stream).named("epoll_ctl")?;
    stream.connected().await.named("connect")?;
    Ok(stream)
}
