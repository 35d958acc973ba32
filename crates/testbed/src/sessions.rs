//! Sessions of an engine that runs in the test's own process: both ends are the test's. A failure panics.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::wait::wait_for;

/// How long anything may take.
pub const LONG: Duration = Duration::from_secs(20);
/// Any port of this host.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A backend, and its address.
pub fn backend() -> (TcpListener, SocketAddr) {
    let backend = TcpListener::bind(ANY_PORT).expect("a backend");
    // accept() fails after this, too.
    SockRef::from(&backend).set_read_timeout(Some(LONG)).expect("a time-out");
    let address = backend.local_addr().expect("its address");
    (backend, address)
}

/// Connects, as a sender.
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.connect(&address.into())?;
    socket.set_read_timeout(Some(LONG))?;
    Ok(socket.into())
}

/// The backend's end of the next session, behind the header (a line of version 1) that names the client.
pub fn accept(backend: &TcpListener) -> TcpStream {
    let (mut received, _) = backend.accept().expect("a session");
    received.set_read_timeout(Some(LONG)).expect("a time-out");
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        received.read_exact(&mut byte).expect("a header");
        line.extend(byte);
    }
    received
}

/// A new session: the sender's end, and the backend's.
pub fn session(address: SocketAddr, backend: &TcpListener) -> (TcpStream, TcpStream) {
    (dial(address).expect("a connection"), accept(backend))
}

/// Bytes go up and come down.
pub fn check_that_it_works((sender, received): &mut (TcpStream, TcpStream)) {
    let mut bytes = [0; 4];
    sender.write_all(b"ping").expect("room");
    received.read_exact(&mut bytes).expect("it goes up");
    received.write_all(b"pong").expect("room");
    sender.read_exact(&mut bytes).expect("it comes down");
}

/// Waits until the engine's state is so.
pub fn wait_until(is_so: impl Fn() -> bool) {
    wait_for("the engine's state", is_so).expect("in time");
}
