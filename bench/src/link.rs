//! Connections of the load, and an epoll to wait on many of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Context;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_sys::socket::set_bind_address_no_port;

/// The time-out for a connection and its first answer. Longer than a lost SYN needs to be repeated (1 s, then
/// 3 s).
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// How many events one epoll_wait takes.
const BATCH: usize = 128;

/// A TCP socket bound to `sender`; connect() chooses the port.
pub(crate) fn socket_from(sender: Ipv4Addr) -> anyhow::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("socket")?;
    set_bind_address_no_port(socket.as_fd())?;
    socket.bind(&SockAddr::from(SocketAddr::from((sender, 0)))).context("bind")?;
    socket.set_tcp_nodelay(true).context("TCP_NODELAY")?;
    Ok(socket)
}

/// A connection that has started with `header` (or with nothing). It blocks for at most [`TIMEOUT`].
pub(crate) fn connect(sender: Ipv4Addr, to: SocketAddr, header: &[u8]) -> anyhow::Result<Socket> {
    let socket = socket_from(sender)?;
    socket.connect_timeout(&SockAddr::from(to), TIMEOUT).with_context(|| format!("connect to {to}"))?;
    socket.set_read_timeout(Some(TIMEOUT)).context("SO_RCVTIMEO")?;
    let sent = socket.send(header).context("the header")?;
    anyhow::ensure!(sent == header.len(), "the header did not fit into an empty socket");
    Ok(socket)
}

/// An epoll whose sources are identified by numbers.
pub(crate) struct Poll {
    epoll: OwnedFd,
}

/// The events of one source.
#[derive(Default)]
pub(crate) struct Events(Vec<Event>);

impl Poll {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC).context("epoll_create1")? })
    }

    /// Level-triggered: an event is reported until it is handled.
    pub(crate) fn add(&self, source: impl AsFd, number: usize, flags: EventFlags) -> anyhow::Result<()> {
        epoll::add(&self.epoll, source, EventData::new_u64(number as u64), flags).context("epoll_ctl(ADD)")
    }

    pub(crate) fn modify(&self, source: impl AsFd, number: usize, flags: EventFlags) -> anyhow::Result<()> {
        epoll::modify(&self.epoll, source, EventData::new_u64(number as u64), flags).context("epoll_ctl(MOD)")
    }

    /// Stops waiting for `source`: otherwise an end or an error would be reported forever.
    pub(crate) fn forget(&self, source: impl AsFd) -> anyhow::Result<()> {
        epoll::delete(&self.epoll, source).context("epoll_ctl(DEL)")
    }

    /// Waits for any event, for at most `timeout`.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Duration) -> anyhow::Result<()> {
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        events.0.clear();
        events.0.reserve(BATCH);
        match epoll::wait(&self.epoll, spare_capacity(&mut events.0), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("epoll_wait"),
        }
    }
}

impl Events {
    /// The numbers of the sources, each with its events.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, EventFlags)> + '_ {
        self.0.iter().map(|event| {
            let (number, flags) = (event.data, event.flags);
            (usize::try_from(number.u64()).unwrap_or(usize::MAX), flags)
        })
    }
}
