//! Whole connections in memory: a client's bytes, an origin that follows a script, and the bytes that each
//! received.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
};
use truepeer_origin::http2::Http2Pool;
use truepeer_origin::{
    ClientInfo, Dial, DialError, Dialled, HttpSettings, HttpTimeouts, Offer, OriginProtocol, Origins, Pool,
};
use truepeer_policy::BackendAddr;
use truepeer_session::budget::Budget;
use truepeer_session::connect_as::ConnectError;
use truepeer_stream::reactor::Reactor;
use truepeer_stream::stream::Connection;
use truepeer_sys::Named as _;

use super::*;

mod drains;
mod ends;
mod expectations;
mod gives_way;
mod messages;
mod origin_h2;
mod refusals;
mod schedules;

pub(crate) use self::gives_way::give_way;

/// An origin: each connection to it is one script.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripts {
    waiting: Rc<RefCell<VecDeque<DuplexStream>>>,
    pub(crate) dialled: Rc<Cell<usize>>,
    /// Writes to any of its connections.
    writes: Rc<Cell<usize>>,
    /// It does not answer a connection attempt at all.
    is_silent: Rc<Cell<bool>>,
    /// For this many connections there is no descriptor.
    pub(crate) lacking: Rc<Cell<usize>>,
    /// It chooses HTTP/1.1 where it may.
    pub(crate) chooses_http1: Rc<Cell<bool>>,
    /// Writes to its connections fail. Its reads wait until one has, as where both are known to the kernel
    /// only.
    pub(crate) is_broken: Rc<Cell<bool>>,
    /// Connection attempts to this address fail.
    pub(crate) unreachable: Rc<Cell<Option<BackendAddr>>>,
    /// Connection attempts after this many don't end; `None`: all do.
    pub(crate) held_after: Rc<Cell<Option<usize>>>,
}

/// A connection to an origin. Its writes are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: DuplexStream,
    writes: Rc<Cell<usize>>,
    is_broken: Rc<Cell<bool>>,
    has_failed: bool,
}

impl Connection for Counted {}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_broken.get() && !self.has_failed {
            return Poll::Pending;
        }
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_broken.get() {
            self.has_failed = true;
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.writes.set(self.writes.get() + 1);
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// A client's connection. While it is deaf, it returns bytes only after `look_again`: the loop has not
/// noticed them yet.
pub(crate) struct Hesitant {
    stream: DuplexStream,
    is_deaf: Rc<Cell<bool>>,
    may_read: Cell<bool>,
    /// How many reads return nothing although there are bytes, because the turn's allowance is used up.
    refusals: Cell<usize>,
    /// Bytes that its kernel has not acknowledged.
    unacknowledged: Rc<Cell<usize>>,
}

impl Hesitant {
    pub(crate) fn new(stream: DuplexStream, may_read: bool, refusals: usize) -> Self {
        let (is_deaf, may_read, refusals) =
            (Rc::new(Cell::new(true)), Cell::new(may_read), Cell::new(refusals));
        Self { stream, is_deaf, may_read, refusals, unacknowledged: Rc::default() }
    }

    /// Whether it is deaf.
    pub(crate) fn is_deaf(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.is_deaf)
    }

    pub(crate) fn unacknowledged(&self) -> Rc<Cell<usize>> {
        Rc::clone(&self.unacknowledged)
    }
}

impl Connection for Hesitant {
    fn look_again(&self) {
        self.may_read.set(true);
    }

    fn is_read_out(&self) -> bool {
        !self.may_read.get()
    }

    fn unacknowledged(&self) -> usize {
        self.unacknowledged.get()
    }
}

impl AsyncRead for Hesitant {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_deaf.get() {
            let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
            self.may_read.set(read.is_ready());
            return read;
        }
        if !self.may_read.get() {
            // The event for these bytes comes later; the stream's own wake replaces it.
            return Poll::Pending;
        }
        if let Some(left) = self.refusals.get().checked_sub(1) {
            self.refusals.set(left);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.may_read.set(read.is_ready());
        read
    }
}

impl AsyncWrite for Hesitant {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Dial for Scripts {
    type Stream = Counted;

    fn uses_tls(&self) -> bool {
        false
    }

    async fn dial(&self, client_info: &ClientInfo, offer: Offer) -> Result<Dialled<Counted>, DialError> {
        self.dialled.set(self.dialled.get() + 1);
        let number = self.dialled.get();
        poll_fn(|cx| match self.held_after.get() {
            Some(most) if number > most => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
        if self.unreachable.get() == Some(self.backend(client_info)) {
            return Err(DialError::Timeout(Duration::from_secs(5)));
        }
        if self.is_silent.get() {
            std::future::pending::<()>().await;
        }
        if let Some(left) = self.lacking.get().checked_sub(1) {
            self.lacking.set(left);
            let none: io::Result<DuplexStream> = Err(io::Error::from_raw_os_error(libc::EMFILE));
            none.named("socket").map_err(|error| DialError::Connect(ConnectError::Call(error)))?;
        }
        let stream =
            self.waiting.borrow_mut().pop_front().ok_or(DialError::Timeout(Duration::from_secs(5)))?;
        let (writes, is_broken) = (Rc::clone(&self.writes), Rc::clone(&self.is_broken));
        let stream = Counted { stream, writes, is_broken, has_failed: false };
        let speaks_http2 = match offer {
            Offer::Http1 => false,
            Offer::Http2 => true,
            Offer::Either => !self.chooses_http1.get(),
        };
        Ok(Dialled { stream, speaks_http2 })
    }
}

impl Scripts {
    /// The number of writes to its connections.
    pub(crate) fn writes(&self) -> Rc<Cell<usize>> {
        Rc::clone(&self.writes)
    }

    /// The origin's end of the next connection to it.
    pub(crate) fn next_connection(&self) -> DuplexStream {
        let (ours, theirs) = duplex(1 << 16);
        self.waiting.borrow_mut().push_back(ours);
        theirs
    }
}

pub(crate) struct Bed {
    pub(crate) reactor: Reactor,
    pub(crate) origin: Scripts,
    pub(crate) service: Rc<Service<Scripts>>,
}

pub(crate) fn client_info() -> ClientInfo {
    fuzzed::client_info(SocketAddr::from(([203, 0, 113, 7], 5000)))
}

pub(crate) fn bed(settings: HttpSettings) -> Bed {
    retrying_bed(settings, Duration::ZERO)
}

/// A bed whose origins speak HTTP/2.
pub(crate) fn http2_bed(settings: HttpSettings) -> Bed {
    bed_with(settings, Duration::from_secs(1), OriginProtocol::Http2)
}

/// A bed whose origins choose their version.
pub(crate) fn choosing_bed() -> Bed {
    bed_with(HttpSettings::default(), Duration::from_secs(1), OriginProtocol::Auto)
}

fn retrying_bed(settings: HttpSettings, retry_timeout: Duration) -> Bed {
    bed_with(settings, retry_timeout, OriginProtocol::Http1)
}

fn bed_with(settings: HttpSettings, retry_timeout: Duration, origin_protocol: OriginProtocol) -> Bed {
    let reactor = Reactor::new().unwrap();
    let (origin, sessions) = (Scripts::default(), Budget::new(1000));
    let journal = Arc::<truepeer_session::Journal>::default();
    let shard = journal.counters.shard(truepeer_session::ListenerId::new(0));
    let service = Rc::new(Service {
        reactor: reactor.clone(),
        settings,
        challenges: None,
        origins: Origins::new(
            truepeer_origin::Origin {
                dialler: origin.clone(),
                protocol: origin_protocol,
                pool: Rc::new(Pool::new(8, Duration::from_secs(60), sessions.clone())),
                http2: Http2Pool::new(&reactor, 8, Duration::from_secs(60), sessions.clone()),
                health: truepeer_origin::OriginHealth::default(),
            },
            Vec::new(),
        ),
        sessions,
        backlog: Budget::new(1 << 20),
        sharing: Sharing::All,
        site: None,
        retry_timeout,
        idle: crate::downstream::IdleConnections::new(1).of(0),
        journal: RequestJournal::new(journal, shard, false),
    });
    Bed { reactor, origin, service }
}

impl Bed {
    /// A client's end of a new connection.
    pub(crate) fn client(&self) -> DuplexStream {
        let (client, ours) = duplex(1 << 16);
        self.reactor.spawn(serve_http1(ours, Vec::new(), client_info(), Rc::clone(&self.service)));
        client
    }

    pub(crate) fn run<T: 'static>(&self, test: impl Future<Output = T> + 'static) -> T {
        let limited = self.reactor.clone();
        self.reactor
            .block_on(async move { limited.timeout(Duration::from_secs(60), test).await })
            .unwrap()
            .expect("the test hangs")
    }
}

/// Reads until `end` has come.
pub(crate) async fn until(stream: &mut DuplexStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&text)),
        }
    }
    String::from_utf8(text).unwrap()
}

pub(crate) async fn rest(stream: &mut DuplexStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

pub(crate) async fn say(stream: &mut DuplexStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}
