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

/// How long a connection, or its first answer, may take. Longer than a lost SYN takes to be sent again (1 s, then 3 s).
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Events taken at once.
const BATCH: usize = 128;

/// A TCP socket bound to `sender`, whose port connect() will choose.
pub(crate) fn socket_from(sender: Ipv4Addr) -> anyhow::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("socket")?;
    set_bind_address_no_port(socket.as_fd())?;
    socket.bind(&SockAddr::from(SocketAddr::from((sender, 0)))).context("bind")?;
    socket.set_tcp_nodelay(true).context("TCP_NODELAY")?;
    Ok(socket)
}

/// A connection that has begun with `header` (or with nothing); it blocks, for at most [`TIMEOUT`].
pub(crate) fn connect(sender: Ipv4Addr, to: SocketAddr, header: &[u8]) -> anyhow::Result<Socket> {
    let socket = socket_from(sender)?;
    socket.connect_timeout(&SockAddr::from(to), TIMEOUT).with_context(|| format!("connect to {to}"))?;
    socket.set_read_timeout(Some(TIMEOUT)).context("SO_RCVTIMEO")?;
    let sent = socket.send(header).context("the header")?;
    anyhow::ensure!(sent == header.len(), "the header did not fit into an empty socket");
    Ok(socket)
}

/// What is waited for, told apart by numbers.
pub(crate) struct Poll {
    epoll: OwnedFd,
}

/// What has happened to what was waited for.
#[derive(Default)]
pub(crate) struct Events(Vec<Event>);

impl Poll {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC).context("epoll_create1")? })
    }

    /// Level-triggered: what is not taken is told again.
    pub(crate) fn add(&self, source: impl AsFd, number: usize, flags: EventFlags) -> anyhow::Result<()> {
        epoll::add(&self.epoll, source, EventData::new_u64(number as u64), flags).context("epoll_ctl(ADD)")
    }

    pub(crate) fn modify(&self, source: impl AsFd, number: usize, flags: EventFlags) -> anyhow::Result<()> {
        epoll::modify(&self.epoll, source, EventData::new_u64(number as u64), flags).context("epoll_ctl(MOD)")
    }

    /// Ends the waiting for `source`: an end or an error would else be told for ever.
    pub(crate) fn forget(&self, source: impl AsFd) -> anyhow::Result<()> {
        epoll::delete(&self.epoll, source).context("epoll_ctl(DEL)")
    }

    /// Waits, for at most `timeout`, for anything to happen.
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
    /// The numbers, each with what happened.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, EventFlags)> + '_ {
        self.0.iter().map(|event| {
            let (number, flags) = (event.data, event.flags);
            (usize::try_from(number.u64()).unwrap_or(usize::MAX), flags)
        })
    }
}
