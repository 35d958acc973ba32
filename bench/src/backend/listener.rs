//! The threads of a stream backend: each has its own listening socket and its own epoll.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use socket2::{Domain, Socket, Type};

use super::stream::{Next, Stream};
use super::tally::{Tally, Totals};
use crate::clients::is_claimed;
use crate::link::{Events, Poll};
use crate::pattern::{CHUNK, Pattern};
use crate::suites::Kind;

/// The backlog; the kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 65_535;
/// No time-out: the threads wake up only for sockets.
const FOREVER: Duration = Duration::from_secs(3600);

/// The keys in the epoll that are not connections.
const LISTENER: usize = usize::MAX;
const INBOX: usize = usize::MAX - 1;

/// Connections that other threads have accepted for this one.
struct Inbox {
    arrived: Mutex<Vec<OwnedFd>>,
    bell: OwnedFd,
}

/// The state that all threads share.
struct Common {
    kind: Kind,
    address: SocketAddr,
    pattern: Pattern,
    tally: Arc<Tally>,
    inboxes: Vec<Inbox>,
    dealt: AtomicUsize,
}

struct Thread {
    number: usize,
    common: Arc<Common>,
    poll: Poll,
    listener: TcpListener,
    streams: Vec<Option<Stream>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

/// Serves forever.
pub(super) fn serve(kind: Kind, address: SocketAddr, threads: usize) -> anyhow::Result<()> {
    let tally = Arc::<Tally>::default();
    tally.publish(address)?;
    let inboxes = (0..threads).map(|_| Inbox::new()).collect::<anyhow::Result<_>>()?;
    let common = Arc::new(Common {
        kind,
        address,
        pattern: Pattern::bulk(),
        tally,
        inboxes,
        dealt: AtomicUsize::new(0),
    });
    let all: Vec<Thread> =
        (0..threads).map(|number| Thread::new(number, &common)).collect::<anyhow::Result<_>>()?;
    let running: Vec<_> = all.into_iter().map(|thread| thread::spawn(move || thread.run())).collect();
    for thread in running {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

/// A socket on the backend's address. It is created and accepted from with the C library's functions, as in
/// most servers, so that a preloaded library can hook them.
pub(super) fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).context("socket")?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // Accepted sockets inherit it.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into()).context("bind")?;
    socket.listen(BACKLOG).context("listen")?;
    Ok(socket.into())
}

impl Inbox {
    fn new() -> anyhow::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?;
        Ok(Self { arrived: Mutex::default(), bell })
    }

    fn put(&self, socket: OwnedFd) -> anyhow::Result<()> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).context("eventfd")?;
        Ok(())
    }

    fn take(&self) -> Vec<OwnedFd> {
        // Reading resets it; having nothing to read is fine.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Thread {
    fn new(number: usize, common: &Arc<Common>) -> anyhow::Result<Self> {
        let (poll, listener) = (Poll::new()?, listen(common.address)?);
        poll.add(&listener, LISTENER, EventFlags::IN)?;
        poll.add(&common.inboxes[number].bell, INBOX, EventFlags::IN)?;
        let (common, buffer) = (Arc::clone(common), vec![0; CHUNK]);
        Ok(Self { number, common, poll, listener, streams: Vec::new(), free: Vec::new(), buffer })
    }

    fn run(mut self) -> anyhow::Result<()> {
        let mut events = Events::default();
        loop {
            self.poll.wait(&mut events, FOREVER)?;
            for (number, flags) in events.iter() {
                match number {
                    LISTENER => self.accept_all()?,
                    INBOX => self.empty_inbox()?,
                    _ => self.serve_stream(number, flags)?,
                }
            }
        }
    }

    fn accept_all(&mut self) -> anyhow::Result<()> {
        loop {
            let (socket, client) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) =>
                {
                    continue;
                }
                Err(error) => return Err(error).context("accept"),
            };
            socket.set_nonblocking(true)?;
            let strangers = u64::from(!is_claimed(client));
            self.common.tally.add(Totals { sessions: 1, strangers, ..Totals::default() });
            self.deal(socket.into())?;
        }
    }

    /// Passes it to the next thread in turn. A short connection is not worth waking another thread.
    fn deal(&mut self, socket: OwnedFd) -> anyhow::Result<()> {
        if self.common.kind == Kind::EchoShort {
            return self.adopt(socket);
        }
        let turn = self.common.dealt.fetch_add(1, Relaxed) % self.common.inboxes.len();
        if turn == self.number { self.adopt(socket) } else { self.common.inboxes[turn].put(socket) }
    }

    fn empty_inbox(&mut self) -> anyhow::Result<()> {
        let arrived = self.common.inboxes[self.number].take();
        arrived.into_iter().try_for_each(|socket| self.adopt(socket))
    }

    fn adopt(&mut self, socket: OwnedFd) -> anyhow::Result<()> {
        let mut stream = Stream::new(socket, self.common.kind);
        // The first bytes have usually arrived with the connection, which saves an epoll_wait.
        if self.common.kind == Kind::EchoShort
            && stream.advance(EventFlags::IN, &mut self.buffer, &self.common.pattern) == Next::Ended
        {
            self.common.tally.add(stream.totals());
            return Ok(());
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.streams.push(None);
            self.streams.len() - 1
        });
        self.poll.add(&stream, number, stream.interest())?;
        self.streams[number] = Some(stream);
        Ok(())
    }

    fn serve_stream(&mut self, number: usize, flags: EventFlags) -> anyhow::Result<()> {
        let Some(Some(stream)) = self.streams.get_mut(number) else { return Ok(()) };
        let before = stream.interest();
        match stream.advance(flags, &mut self.buffer, &self.common.pattern) {
            Next::Ended => {
                // Counted before it is closed: the load asks as soon as it sees the end.
                self.common.tally.add(stream.totals());
                self.streams[number] = None;
                self.free.push(number);
                Ok(())
            }
            Next::Waits if stream.interest() != before => {
                self.poll.modify(&*stream, number, stream.interest())
            }
            Next::Waits => Ok(()),
        }
    }
}
