//! The sockets that the checks open.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use truepeer_routes::item::IpFamily;

/// Asks for `IP_TRANSPARENT` on a socket that is then closed.
pub(super) fn try_transparent(family: IpFamily) -> io::Result<()> {
    set_transparent(&tcp(family)?, family)
}

/// Sets `SO_MARK` on a socket and closes it.
pub(super) fn try_mark(mark: u32) -> io::Result<()> {
    tcp(IpFamily::V4)?.set_mark(mark)
}

/// A connection to a server of this host.
pub(super) fn stream(server: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = tcp(IpFamily::of(server.ip()))?;
    socket.connect_timeout(&server.into(), timeout)?;
    Ok(socket.into())
}

/// Connects to the backend and closes the connection. Returns this host's address towards the backend.
pub(super) fn connect(backend: SocketAddr, timeout: Duration) -> io::Result<IpAddr> {
    let socket = tcp(IpFamily::of(backend.ip()))?;
    socket.connect_timeout(&backend.into(), timeout)?;
    let local = socket.local_addr()?.as_socket();
    local.map(|local| local.ip()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Connects from a foreign address. The answer arrives only if it is routed back.
pub(super) fn connect_spoofed(backend: SocketAddr, mark: Option<u32>, timeout: Duration) -> io::Result<()> {
    let family = IpFamily::of(backend.ip());
    let socket = tcp(family)?;
    set_transparent(&socket, family)?;
    if let Some(mark) = mark {
        socket.set_mark(mark)?;
    }
    socket.bind(&SocketAddr::new(family.example_client(), 0).into())?;
    socket.connect_timeout(&backend.into(), timeout)
}

fn tcp(family: IpFamily) -> io::Result<Socket> {
    let domain = match family {
        IpFamily::V4 => Domain::IPV4,
        IpFamily::V6 => Domain::IPV6,
    };
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

fn set_transparent(socket: &Socket, family: IpFamily) -> io::Result<()> {
    match family {
        IpFamily::V4 => socket.set_ip_transparent_v4(true),
        IpFamily::V6 => socket.set_ip_transparent_v6(true),
    }
}

/// Returns an interface's name by its index. It asks through a socket because `/sys` may show another network
/// namespace.
pub(super) fn interface_name(index: u32) -> Option<String> {
    rustix::net::netdevice::index_to_name(tcp(IpFamily::V4).ok()?, index).ok()
}
