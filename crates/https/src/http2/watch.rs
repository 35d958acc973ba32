//! Inspects a client's frames before they reach `h2`: counts control frames, passes header blocks to
//! [`super::malformed`], hides ends of requests ([`super::uploads`]), and replaces paths that `h2` would
//! refuse ([`super::odd_path`]). For that a header block is held back until it is whole.
//!
//! `h2` bounds its memory and ends floods of resets, CONTINUATION and empty DATA. But it answers PING,
//! SETTINGS, PRIORITY and WINDOW_UPDATE without a limit (CVE-2019-9511 to 9517), and one open request keeps
//! such a connection alive forever. `h2`'s API exposes none of these frames, so they are counted here.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{
    DATA, END_STREAM, FRAME_HEAD_BYTES, FrameHead, Frames, HEADERS, PREFACE_BYTES, Passed, RST_STREAM,
};
use super::malformed::{Blocks, Malformed, replace};
use super::uploads::{Pass, Uploads};
use crate::reactor::Reactor;
use crate::shared_stream::SharedStream;

/// A kind of frame that nobody has defined, so that `h2` ignores it (RFC 9113 section 5.5).
pub(super) const UNKNOWN: u8 = 0xfa;
/// How many control frames a client may send in a row.
const MOST_AT_ONCE: u32 = 1000;
/// How many control frames are allowed each second, such as keep-alive pings.
const EACH_SECOND: u32 = 100;
/// How many control frames are allowed for each request: priority, window, end.
const EACH_REQUEST: u32 = 8;
/// One control frame is allowed for this many bytes of a response. Some clients send two WINDOW_UPDATEs for
/// each DATA frame, and some origins send a few words at a time. A client that opens its window by single
/// bytes gains nothing.
const BYTES_EACH: usize = 16;

/// The longest part of a header block that is held back. Of a longer one no path is replaced.
const MOST_HELD: usize = 128 << 10;

/// Bytes that are held back, after some that may be read.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    ready: usize,
}

impl Held {
    /// Moves bytes that may be read to `buffer`. Whether there were any.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let length = self.ready.min(buffer.remaining());
        buffer.put_slice(&self.bytes[..length]);
        self.bytes.drain(..length);
        self.ready -= length;
        if self.bytes.is_empty() {
            // A connection may be idle for long.
            self.bytes = Vec::new();
        }
        length > 0
    }
}

/// What was found in received bytes.
struct Noted {
    /// How many may go on.
    passes: usize,
    /// The start of a block's first frame, and what must be replaced in the block.
    replaced: Vec<(usize, (usize, Vec<u8>))>,
}

/// How many control frames a client may still send.
#[derive(Debug)]
struct ControlAllowance {
    left: u32,
    /// When time was last counted.
    since: Instant,
}

impl ControlAllowance {
    fn new(now: Instant) -> Self {
        Self { left: MOST_AT_ONCE, since: now }
    }

    /// Counts a received frame. `false`: the client has sent too many.
    fn on_received(&mut self, head: FrameHead, now: Instant) -> bool {
        match head {
            FrameHead { kind: HEADERS, .. } => self.earn(EACH_REQUEST),
            // Each stream may end with one empty DATA frame; other empty ones count.
            FrameHead { kind: DATA, flags, payload_bytes, .. }
                if payload_bytes > 0 || flags & END_STREAM != 0 => {}
            _ => return self.spend(now),
        }
        true
    }

    fn on_sent(&mut self, head: FrameHead) {
        if head.kind == DATA {
            self.earn(u32::try_from(head.payload_bytes / BYTES_EACH).unwrap_or(u32::MAX));
        }
    }

    fn earn(&mut self, more: u32) {
        self.left = self.left.saturating_add(more).min(MOST_AT_ONCE);
    }

    fn spend(&mut self, now: Instant) -> bool {
        if self.left == 0 {
            let passed = now.saturating_duration_since(self.since).min(Duration::from_secs(60));
            self.since = now;
            self.earn(
                u32::try_from(passed.as_millis()).unwrap_or(u32::MAX).saturating_mul(EACH_SECOND) / 1000,
            );
        }
        let spent = self.left.checked_sub(1);
        self.left = spent.unwrap_or_default();
        spent.is_some()
    }
}

/// A connection whose frames are counted. Clones share it; `h2` has one.
#[derive(Debug)]
pub(super) struct CountedStream<S>(Rc<FrameWatch<S>>);

#[derive(Debug)]
struct FrameWatch<S> {
    stream: SharedStream<S>,
    reactor: Reactor,
    received: RefCell<Frames>,
    sent: RefCell<Frames>,
    allowance: RefCell<ControlAllowance>,
    blocks: RefCell<Blocks>,
    held: RefCell<Held>,
    /// Streams that `h2` has reset by itself for errors of the client, and that were not counted yet.
    resets: Cell<u32>,
    malformed: Rc<Malformed>,
    uploads: Rc<Uploads>,
    is_exhausted: Cell<bool>,
}

impl<S> Clone for CountedStream<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CountedStream<S> {
    pub(super) fn new(stream: S, reactor: &Reactor) -> Self {
        Self(Rc::new(FrameWatch {
            stream: SharedStream::new(stream),
            reactor: reactor.clone(),
            received: RefCell::new(Frames::after(PREFACE_BYTES)),
            sent: RefCell::new(Frames::after(0)),
            allowance: RefCell::new(ControlAllowance::new(reactor.now())),
            blocks: RefCell::new(Blocks::new()),
            held: RefCell::default(),
            resets: Cell::new(0),
            malformed: Rc::default(),
            uploads: Rc::default(),
            is_exhausted: Cell::new(false),
        }))
    }

    /// Whether the client has sent too many frames. From then on nothing is read; `h2` can still write its
    /// last frames.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.is_exhausted.get()
    }

    /// The malformed streams.
    pub(super) fn malformed(&self) -> &Rc<Malformed> {
        &self.0.malformed
    }

    /// The requests that are still being sent.
    pub(super) fn uploads(&self) -> &Rc<Uploads> {
        &self.0.uploads
    }

    /// The connection beneath.
    pub(super) fn stream(&self) -> &SharedStream<S> {
        &self.0.stream
    }

    /// Inspects what has come, and takes back the ends of requests that `h2` must not see (see
    /// [`super::uploads`]).
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn note_received(&self, bytes: &mut [u8]) {
        self.note(bytes, 0);
    }

    /// Inspects what has come, and makes of it what `h2` must see. The bytes before `new` were held back.
    /// Returns how many may go on.
    fn inspect(&self, bytes: &mut [u8], new: usize) -> usize {
        let noted = self.note(bytes, new);
        for (start, part) in &noted.replaced {
            replace(&mut bytes[*start..], part);
        }
        noted.passes
    }

    fn note(&self, bytes: &mut [u8], new: usize) -> Noted {
        let (mut hidden, mut replaced) = (Vec::new(), Vec::new());
        // A block that is held back starts the bytes.
        let mut block = (new > 0).then_some(0);
        let (mut allowance, now) = (self.0.allowance.borrow_mut(), self.0.reactor.now());
        let (mut blocks, malformed) = (self.0.blocks.borrow_mut(), &*self.0.malformed);
        let length = bytes.len();
        let mut received = self.0.received.borrow_mut();
        received.pass(&bytes[new..], |passed| {
            match passed {
                Passed::Frame(head, after) => {
                    if head.kind == HEADERS {
                        block = length.checked_sub(after + FRAME_HEAD_BYTES);
                    }
                    blocks.on_frame(head, malformed);
                    // The kind and the flags are the sixth and the fifth byte from the header's end. `h2` may
                    // have them already.
                    let from_end = |back: usize| length.checked_sub(after + back);
                    match self.0.uploads.on_frame(head) {
                        Pass::Whole => {}
                        Pass::Hidden if let Some(kind) = from_end(6) => hidden.push((kind, UNKNOWN)),
                        Pass::Hidden | Pass::WithoutEnd => {
                            hidden.extend(from_end(5).map(|flags| (flags, head.flags & !END_STREAM)));
                        }
                    }
                    if !allowance.on_received(head, now) || malformed.are_too_many() {
                        self.0.is_exhausted.set(true);
                    }
                }
                Passed::Payload(bytes) => blocks.on_payload(bytes, malformed),
            }
            replaced.extend(blocks.take_replaced().and_then(|part| Some((block?, part))));
        });
        for (at, byte) in hidden {
            bytes[at] = byte;
        }
        let from = if blocks.is_open() { block } else { Some(length - received.known().min(length)) };
        let passes = from.filter(|from| length - from <= MOST_HELD).unwrap_or(length);
        Noted { passes, replaced }
    }

    /// How many streams `h2` has reset by itself for errors of the client since the last call.
    pub(super) fn take_resets(&self) -> u32 {
        self.0.resets.take()
    }

    fn note_sent<'a>(&self, slices: impl Iterator<Item = &'a [u8]>, mut length: usize) {
        let (mut allowance, mut sent) = (self.0.allowance.borrow_mut(), self.0.sent.borrow_mut());
        let mut reset = None;
        for slice in slices {
            let taken = length.min(slice.len());
            sent.pass(&slice[..taken], |passed| match passed {
                Passed::Frame(head, _) => {
                    allowance.on_sent(head);
                    reset = (head.kind == RST_STREAM).then_some(head.stream);
                }
                Passed::Payload([0, 0, 0, 1])
                    if reset.is_some_and(|stream| !self.0.malformed.was_reset(stream)) =>
                {
                    self.0.resets.set(self.0.resets.get() + 1);
                }
                Passed::Payload(_) => {}
            });
            length -= taken;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_exhausted() {
            // No waker is needed: the connection's task checks `is_exhausted` after each poll.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let mut held = self.0.held.borrow_mut();
        loop {
            if held.give(buffer) {
                return Poll::Ready(Ok(()));
            }
            if held.bytes.is_empty() {
                ready!(self.0.stream.with(|stream| stream.poll_read(cx, buffer)))?;
                let came = &mut buffer.filled_mut()[before..];
                if came.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let passes = self.inspect(came, 0);
                held.bytes.extend_from_slice(&came[passes..]);
                buffer.set_filled(before + passes);
            } else {
                let new = held.bytes.len();
                let mut space = [0; 4096];
                let mut more = ReadBuf::new(&mut space);
                ready!(self.0.stream.with(|stream| stream.poll_read(cx, &mut more)))?;
                held.bytes.extend_from_slice(more.filled());
                // At the end, `h2` sees what came of a block.
                let is_end = more.filled().is_empty();
                held.ready = if is_end { new } else { self.inspect(&mut held.bytes, new) };
            }
            if self.is_exhausted() {
                buffer.set_filled(before);
                return Poll::Pending;
            }
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let length = ready!(self.0.stream.with(|stream| stream.poll_write(cx, bytes)))?;
        self.note_sent(std::iter::once(bytes), length);
        Poll::Ready(Ok(length))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = ready!(self.0.stream.with(|stream| stream.poll_write_vectored(cx, slices)))?;
        self.note_sent(slices.iter().map(|slice| &**slice), length);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.stream.with(|stream| stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.stream.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.stream.with(|stream| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a request that is hidden, in two pieces: nothing else changes, and what has passed stays as
    /// it was.
    #[test]
    fn an_end_is_hidden_however_it_is_cut() {
        use super::super::uploads::Upload;
        let frame = |kind, flags, payload: &[u8]| {
            [&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, 1], payload].concat()
        };
        let reactor = Reactor::new().unwrap();
        for payload in [&b""[..], b"last"] {
            for cut in 0..=9 {
                let (stream, _client) = tokio::io::duplex(64);
                let watched = CountedStream::new(stream, &reactor);
                let head = frame(HEADERS, 4, &[0x83, 0x87, 0x84]);
                watched.note_received(&mut [&[b'x'; PREFACE_BYTES][..], &head].concat());
                let upload = Upload::new(watched.uploads(), 1, Some(100));
                upload.on_response();
                let sent = frame(DATA, END_STREAM, payload);
                let mut seen = sent.clone();
                let (first, rest) = seen.split_at_mut(cut);
                watched.note_received(first);
                watched.note_received(rest);
                let hides_kind = payload.is_empty() && (cut <= 3 || cut == 9);
                let hides_end = !hides_kind && (cut <= 4 || cut == 9);
                let mut expected = sent;
                if hides_kind {
                    expected[3] = UNKNOWN;
                } else if hides_end {
                    expected[4] = 0;
                }
                assert_eq!(seen, expected, "cut at {cut}");
            }
        }
    }

    const PING: FrameHead = FrameHead { kind: 6, flags: 0, payload_bytes: 8, stream: 0 };
    const GET: FrameHead = FrameHead { kind: HEADERS, flags: 5, payload_bytes: 40, stream: 1 };

    /// Frames that may come in a row until one may not.
    fn run(allowance: &mut ControlAllowance, head: FrameHead, now: Instant) -> u32 {
        (0..).find(|_| !allowance.on_received(head, now)).unwrap()
    }

    #[test]
    fn control_frames_are_limited_and_the_allowance_refills() {
        let now = Instant::now();
        let mut allowance = ControlAllowance::new(now);
        assert_eq!(run(&mut allowance, PING, now), MOST_AT_ONCE);
        assert_eq!(run(&mut allowance, PING, now + Duration::from_secs(2)), 2 * EACH_SECOND);
        // A long silence gives no more than the initial allowance.
        assert_eq!(run(&mut allowance, PING, now + Duration::from_secs(1 << 30)), MOST_AT_ONCE);
    }

    #[test]
    fn requests_and_responses_raise_the_allowance_and_single_bytes_do_not() {
        let now = Instant::now();
        let mut allowance = ControlAllowance::new(now);
        run(&mut allowance, PING, now);
        assert!(allowance.on_received(GET, now));
        assert_eq!(run(&mut allowance, PING, now), EACH_REQUEST);
        allowance.on_sent(FrameHead { kind: DATA, flags: 0, payload_bytes: 50, stream: 1 });
        assert_eq!(run(&mut allowance, PING, now), 3);
        allowance.on_sent(FrameHead { kind: DATA, flags: 0, payload_bytes: 1, stream: 1 });
        allowance.on_sent(PING);
        assert_eq!(run(&mut allowance, PING, now), 0);
    }

    #[test]
    fn only_empty_data_frames_count() {
        let now = Instant::now();
        let mut allowance = ControlAllowance::new(now);
        let data = |flags, payload_bytes| FrameHead { kind: DATA, flags, payload_bytes, stream: 1 };
        for head in [data(0, 1), data(END_STREAM, 0), GET] {
            assert!((0..10 * MOST_AT_ONCE).all(|_| allowance.on_received(head, now)), "{head:?}");
        }
        assert_eq!(run(&mut allowance, data(0, 0), now), MOST_AT_ONCE);
    }
}
