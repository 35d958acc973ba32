//! One direction of a tunnelled connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use truepeer_session::budget::{Budget, Permit};

use crate::buffers::{self, RECORD_BYTES};
use crate::stream::Connection;
use crate::tls::OUTGOING_BYTES;

/// The most that is held for a sink that takes no bytes: what was read for it, plus what was encrypted
/// before.
const SLOW_BYTES: usize = RECORD_BYTES + OUTGOING_BYTES;
/// The size of a read once all slow sinks together have reached their limit.
const SMALL_PIECE_BYTES: usize = 2 << 10;

/// The end at which a half's stream broke.
#[derive(Debug)]
pub(super) enum Fault {
    /// The source. Everything before has been passed on.
    Source(io::Error),
    /// The sink.
    Sink(io::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HalfStage {
    Flowing,
    /// The source is broken. Its remaining bytes are passed on, but not its end, because the kernel reports a
    /// reset only once and then an orderly end.
    Broken,
    /// The source has ended; the sink must be told.
    Ending,
    Ended,
}

/// The bytes of one direction. It reads only when it holds none, and has a buffer only while it holds bytes.
///
/// All slow sinks together are limited ([`truepeer_session::budget::Budgets::backlog_bytes`]). Above the
/// limit, bytes stay in the kernel until the sink has taken everything before them, and are then read in
/// small pieces.
#[derive(Debug)]
pub(super) struct PumpHalf {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    stage: HalfStage,
    bytes: u64,
    /// Set while the sink has not taken everything.
    slow: Option<Permit>,
}

impl PumpHalf {
    /// Creates a half that starts with bytes already read.
    pub(super) fn beginning_with(first: Vec<u8>) -> Self {
        let to = first.len();
        Self { buffer: first, from: 0, to, stage: HalfStage::Flowing, bytes: 0, slow: None }
    }

    /// Bytes taken by the sink.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The source was found broken, in this direction or the other: see [`PumpHalf::poll`].
    pub(super) fn on_broken_source(&mut self) {
        if self.stage == HalfStage::Flowing {
            self.stage = HalfStage::Broken;
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.stage == HalfStage::Ended
    }

    /// Moves bytes. Ready when the end has been passed on, or when a broken source has no more bytes.
    pub(super) fn poll<A: Connection, B: Connection>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut A,
        sink: &mut B,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        loop {
            ready!(self.poll_write(cx, sink, backlog))?;
            match self.stage {
                HalfStage::Ended => return Poll::Ready(Ok(())),
                HalfStage::Ending => {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(Fault::Sink)?;
                    self.stage = HalfStage::Ended;
                    self.slow = None;
                }
                HalfStage::Flowing => ready!(self.poll_read(cx, source, sink, backlog))?,
                HalfStage::Broken => {
                    ready!(self.poll_read(cx, source, sink, backlog))?;
                    if self.from == self.to {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }

    /// Writes the bytes that are held.
    fn poll_write<B: Connection>(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut B,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        while self.from < self.to {
            let rest = &self.buffer[self.from..self.to];
            let Poll::Ready(sent) = Pin::new(&mut *sink).poll_write(cx, rest) else {
                self.note_slow(sink, backlog);
                self.shrink();
                return Poll::Pending;
            };
            let sent = sent.map_err(Fault::Sink)?;
            if sent == 0 {
                return Poll::Ready(Err(Fault::Sink(io::ErrorKind::WriteZero.into())));
            }
            self.from += sent;
            self.bytes += sent as u64;
        }
        buffers::give_back(std::mem::take(&mut self.buffer));
        Poll::Ready(Ok(()))
    }

    /// The sink took no bytes. It counts as slow only if its kernel buffer is full: most sinks merely wait
    /// for the end of the turn.
    fn note_slow(&mut self, sink: &impl Connection, backlog: &Budget) {
        if !sink.may_be_writable() {
            self.slow.get_or_insert_with(|| backlog.take_anyway(SLOW_BYTES));
        }
    }

    /// Moves a small rest to a small buffer, because it may wait for long.
    fn shrink(&mut self) {
        if self.slow.is_some()
            && self.to - self.from <= SMALL_PIECE_BYTES
            && self.buffer.len() == RECORD_BYTES
        {
            let rest = self.buffer[self.from..self.to].to_vec();
            (self.from, self.to) = (0, rest.len());
            buffers::give_back(std::mem::replace(&mut self.buffer, rest));
        }
    }

    /// Flushes what TLS has encrypted.
    fn poll_flush<B: Connection>(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut B,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        match Pin::new(&mut *sink).poll_flush(cx) {
            Poll::Ready(flushed) => {
                self.slow = None;
                Poll::Ready(flushed.map_err(Fault::Sink))
            }
            Poll::Pending => {
                self.note_slow(sink, backlog);
                Poll::Pending
            }
        }
    }

    fn poll_read<A: Connection, B: Connection>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut A,
        sink: &mut B,
        backlog: &Budget,
    ) -> Poll<Result<(), Fault>> {
        let is_pressed = !backlog.has(SLOW_BYTES);
        if is_pressed {
            ready!(self.poll_flush(cx, sink, backlog))?;
        }
        let mut buffer = buffers::take(RECORD_BYTES);
        let most = if is_pressed { SMALL_PIECE_BYTES } else { buffer.len() };
        let mut space = ReadBuf::new(&mut buffer[..most]);
        let read = Pin::new(&mut *source).poll_read(cx, &mut space);
        let read = read.map_ok(|()| space.filled().len());
        match read {
            Poll::Ready(Ok(length)) if length > 0 => {
                (self.buffer, self.from, self.to) = (buffer, 0, length);
                return Poll::Ready(Ok(()));
            }
            _ => buffers::give_back(buffer),
        }
        match read {
            Poll::Ready(Ok(_)) => {
                if self.stage == HalfStage::Flowing {
                    self.stage = HalfStage::Ending;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                self.on_broken_source();
                Poll::Ready(Err(Fault::Source(error)))
            }
            // Flush now: encrypted bytes must not wait for the next read.
            Poll::Pending => match self.poll_flush(cx, sink, backlog) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for PumpHalf {
    fn drop(&mut self) {
        buffers::give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;
    use std::net::TcpStream;
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use socket2::{Domain, SockRef, Socket, Type};
    use truepeer_session::listening::{ListenOptions, listen};

    use super::*;
    use crate::reactor::{Reactor, TcpListener};
    use crate::stream::Stream;

    const LONG: Duration = Duration::from_secs(60);

    /// Connections of the loop's own, each with its other end.
    struct Door(TcpListener);

    impl Door {
        /// With small kernel buffers.
        fn new(reactor: &Reactor) -> Self {
            let socket = listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
            SockRef::from(&socket.as_fd()).set_send_buffer_size(4096).unwrap();
            Self(TcpListener::new(reactor, socket).unwrap())
        }

        async fn pair(&self) -> (Stream, TcpStream) {
            let far = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            far.set_recv_buffer_size(4096).unwrap();
            far.connect(&self.0.local_address().unwrap().into()).unwrap();
            let (near, _) = self.0.accept().await.unwrap();
            (Stream::Plain(near), far.into())
        }
    }

    fn run<T: 'static>(reactor: &Reactor, test: impl Future<Output = T> + 'static) -> T {
        let limited = reactor.clone();
        reactor.block_on(async move { limited.timeout(LONG, test).await }).unwrap().expect("the test hangs")
    }

    #[test]
    fn a_sink_is_slow_when_its_kernel_is_full_and_not_when_the_turn_has_not_ended() {
        let reactor = Reactor::new().unwrap();
        let (listener, other, busy) = (Door::new(&reactor), reactor.clone(), reactor.clone());
        run(&reactor, async move {
            let ((mut source, _from), (mut sink, _to)) = (listener.pair().await, listener.pair().await);
            let backlog = Budget::new(1 << 20);
            // Another task that works in each turn, after this one.
            let mut others = Some(async move {
                loop {
                    busy.yield_now().await;
                }
            });
            poll_fn(|cx| match others.take() {
                Some(others) => {
                    cx.waker().wake_by_ref();
                    other.spawn(others);
                    Poll::Pending
                }
                None => Poll::Ready(()),
            })
            .await;
            let mut half = PumpHalf::beginning_with(vec![7; 1 << 20]);
            let mut has_waited_for_the_turn = false;
            poll_fn(|cx| {
                let is_done = half.poll(cx, &mut source, &mut sink, &backlog).is_ready();
                assert!(!is_done);
                if sink.tcp().may_be_writable() {
                    has_waited_for_the_turn |= half.bytes() == 0;
                    assert_eq!(backlog.used(), 0);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                assert_eq!(backlog.used(), SLOW_BYTES);
                Poll::Ready(())
            })
            .await;
            assert!(has_waited_for_the_turn, "the test shows nothing");
            drop(half);
            assert_eq!(backlog.used(), 0);
        });
    }

    /// All sources send as much as possible, and no sink takes any bytes.
    #[test]
    fn slow_sinks_together_stay_within_the_backlog_limit() {
        const SESSIONS: usize = 40;
        const FULL: usize = 4;
        let reactor = Reactor::new().unwrap();
        let (listener, other) = (Door::new(&reactor), reactor.clone());
        run(&reactor, async move {
            let backlog = Budget::new(FULL * SLOW_BYTES);
            let (mut sessions, mut senders) = (Vec::new(), Vec::new());
            for _ in 0..SESSIONS {
                let ((source, mut from), (sink, to)) = (listener.pair().await, listener.pair().await);
                // Ends only when the connection does.
                senders.push(std::thread::spawn(move || while from.write_all(&[7; 1 << 16]).is_ok() {}));
                sessions.push((PumpHalf::beginning_with(Vec::new()), source, sink, to));
            }
            poll_fn(|cx| {
                let mut all_are_stuck = true;
                for (half, source, sink, _) in &mut sessions {
                    assert!(half.poll(cx, source, sink, &backlog).is_pending());
                    all_are_stuck &= half.slow.is_some() && half.to > half.from;
                }
                if all_are_stuck { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let held: usize = sessions.iter().map(|(half, ..)| half.buffer.capacity()).sum();
            assert!(held <= FULL * RECORD_BYTES + SESSIONS * SMALL_PIECE_BYTES, "{held} bytes");
            other.yield_now().await;
            drop(sessions);
            assert_eq!(backlog.used(), 0);
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }
}
