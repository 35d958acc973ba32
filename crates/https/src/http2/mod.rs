//! HTTP/2 with clients that negotiate it (ALPN). Each stream is an exchange with the origin, in the
//! version of HTTP that is spoken there.
//!
//! ```text
//! connection task: h2's protocol, frames in and out ──▶ a task for each stream: Request ─▶ Service::serve ─▶ Response
//! ```
//! A client's use of memory is bounded: concurrent streams, bytes in flight of each (a stream's window opens
//! only as the origin takes the bytes), heads, streams that are started only to be cancelled, and control
//! frames (`watch`). `h2` itself answers floods of CONTINUATION and of empty or tiny DATA with
//! GOAWAY(ENHANCE_YOUR_CALM), and reads no further frame while its answer to the last PING or SETTINGS can't
//! be sent. Server push is not offered. An extended CONNECT (RFC 8441) becomes an
//! upgrade at the origin (`websocket`).

mod frames;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzed_watch;
mod hpack;
mod huffman;
mod malformed;
mod odd_path;
mod request;
mod response;
mod rest;
mod stream;
#[cfg(test)]
mod tests;
mod uploads;
mod watch;
mod websocket;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use http::Request;
use truepeer_http::HttpLimits;

#[cfg(any(test, feature = "fuzzing"))]
pub use self::fuzzed_watch::any_watched;
use self::rest::{Rest, RestEnd};
use self::watch::CountedStream;
use crate::client_info::ClientInfo;
use crate::exchange::{Failure, Service, TimeLimit, linger};
use crate::origin::{Accesses, Dial};
use crate::read_buffer::Buffer;
use crate::stream::Connection as ClientStream;

/// Concurrent streams.
const MOST_STREAMS: u32 = 128;
/// Bytes of a body in flight, for one stream (13 MB/s at a round trip of 20 ms) and for all of a connection.
/// This is also the most that a client can make truepeer hold for it.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a stream's response that wait for the client: a few TLS records, so that the next frames are
/// ready.
const SEND_BYTES: usize = 64 << 10;
/// This many cancelled streams are always allowed. Above it, they must be fewer than half of all.
const RESETS_FOR_NOTHING: u64 = 100;
/// Exchanges that have not ended, including cancelled ones.
const MOST_EXCHANGES: u64 = 2 * MOST_STREAMS as u64;
/// Frames for a stream that truepeer has reset are ignored for this long, for this many streams (RFC 9113
/// section 5.4.2): the client may have sent them before it saw the reset.
const RESET_REMEMBERED_FOR: Duration = Duration::from_secs(30);
const MOST_RESET_REMEMBERED: usize = 256;
/// Streams that `h2` resets for errors before it ends the connection.
const MOST_ERRORS: usize = 256;

/// Cookies of a request, which come as one field each (RFC 9113 8.2.3) and count as one.
const MOST_COOKIES: usize = 1024;
/// What a list's size counts for each field besides its text (RFC 7540 6.5.2), and the name of a cookie.
const FIELD_BYTES: usize = 32 + "cookie".len();

/// The limit for `h2`, which refuses larger lists by itself, uncounted. So it is well above that of
/// [`request`], which counts as HTTP/1.1 does.
fn most_list_bytes(limits: &HttpLimits) -> usize {
    4 * (limits.head_bytes + FIELD_BYTES * (limits.fields + MOST_COOKIES))
}

/// Counts of a connection's streams.
#[derive(Debug)]
struct Tally {
    open: Cell<u64>,
    begun: Cell<u64>,
    /// Cancelled by the client before the response.
    reset: Cell<u64>,
    /// Wakes the connection's task when a stream ends.
    connection: RefCell<Waker>,
}

impl Tally {
    fn new() -> Self {
        let connection = RefCell::new(Waker::noop().clone());
        Self { open: Cell::new(0), begun: Cell::new(0), reset: Cell::new(0), connection }
    }

    fn on_begin(&self) {
        self.begun.set(self.begun.get() + 1);
        self.open.set(self.open.get() + 1);
    }

    fn on_end(&self, was_reset: bool) {
        self.open.set(self.open.get() - 1);
        self.reset.set(self.reset.get() + u64::from(was_reset));
        self.connection.borrow().wake_by_ref();
    }

    /// Whether the client cancels most of its requests ("rapid reset", CVE-2023-44487).
    fn is_abusive(&self) -> bool {
        let takes_back = self.reset.get() > RESETS_FOR_NOTHING && self.reset.get() * 2 > self.begun.get();
        takes_back || self.open.get() >= MOST_EXCHANGES
    }
}

/// Serves a client until its connection ends.
pub async fn serve_http2<C, O>(stream: C, client_info: ClientInfo, service: Rc<Service<O>>)
where
    C: ClientStream,
    O: Dial,
{
    let limits = &service.settings.limits;
    let mut builder = Builder::new();
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(MOST_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(most_list_bytes(limits)).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BYTES)
        .max_local_error_reset_streams(Some(MOST_ERRORS))
        .max_concurrent_reset_streams(MOST_RESET_REMEMBERED)
        .reset_stream_duration(RESET_REMEMBERED_FOR);
    let client_info = Rc::new(client_info);
    let watched = CountedStream::new(stream, &service.reactor);
    let preface = service.reactor.timeout(service.settings.timeouts.head, builder.handshake(watched.clone()));
    let ended = match preface.await {
        Ok(Ok(connection)) => {
            let access = Rc::new(service.access(&client_info));
            run(connection, &watched, &client_info, &service, &access).await
        }
        Ok(Err(error)) => of_h2(&error),
        Err(_) => return,
    };
    if let ConnectionEnd::Refused(failure) = &ended {
        service.journal.on_failure(&client_info, client_info.route.backend, failure, service.reactor.now());
    }
    if !matches!(ended, ConnectionEnd::Theirs | ConnectionEnd::GivesWay) || watched.stream().is_broken() {
        // Closing with unread bytes would reset the connection, and the client would lose the GOAWAY, or TLS'
        // alert.
        let time_limit = TimeLimit::new(&service.reactor);
        let timeouts = &service.settings.timeouts;
        linger(watched.stream(), &mut Buffer::default(), timeouts, timeouts.linger, &time_limit).await;
    }
}

/// What `h2` says of the next request; `None`: none comes.
type Accepted = Option<Result<(Request<RecvStream>, SendResponse<Bytes>), h2::Error>>;

/// How a connection ended.
enum ConnectionEnd {
    /// The client ended it, or is gone.
    Theirs,
    /// truepeer ended it normally.
    Ours,
    /// truepeer ended it for a new one, which needs its descriptor now. The client has acknowledged all bytes
    /// before the GOAWAY.
    GivesWay,
    /// truepeer ended it because of the client's behaviour.
    Refused(Failure),
}

fn of_h2(error: &h2::Error) -> ConnectionEnd {
    match error.reason() {
        Some(reason) if error.is_go_away() && error.is_library() => ConnectionEnd::Refused(match reason {
            h2::Reason::ENHANCE_YOUR_CALM => Failure::Http2Excess,
            reason => Failure::Http2(truepeer_http::http2::Reason(reason.into())),
        }),
        _ => ConnectionEnd::Theirs,
    }
}

async fn run<C, O>(
    mut connection: Connection<CountedStream<C>, Bytes>,
    watched: &CountedStream<C>,
    client_info: &Rc<ClientInfo>,
    service: &Rc<Service<O>>,
    access: &Rc<Accesses<O::Stream>>,
) -> ConnectionEnd
where
    C: ClientStream,
    O: Dial,
{
    let tally = Rc::new(Tally::new());
    let mut rest = Rest::new(service);
    let ended = loop {
        let accepted = poll_fn(|cx| {
            if !rest.is_last && service.reactor.is_draining() && rest.may_drain(cx, &tally) {
                rest.drain();
                connection.graceful_shutdown();
            }
            rest.end = None;
            let accepted = connection.poll_accept(cx);
            for _ in 0..watched.take_resets() {
                let (origin, now) = (client_info.route.backend, service.reactor.now());
                service.journal.on_failure(client_info, origin, &Failure::Http2Malformed, now);
            }
            match accepted {
                Poll::Pending if watched.is_exhausted() => Poll::Ready(None),
                Poll::Pending => {
                    let is_quiet = !connection.has_streams();
                    match rest.poll_end(cx, &tally, is_quiet, service.reactor.now()) {
                        Poll::Pending => Poll::Pending,
                        Poll::Ready(RestEnd::TimedOut) => Poll::Ready(None),
                        Poll::Ready(RestEnd::IsWanted) => poll_last(&mut connection, watched, cx),
                    }
                }
                accepted => accepted,
            }
        });
        let (request, mut respond) = match accepted.await {
            Some(Ok(accepted)) => accepted,
            Some(Err(error)) => break of_h2(&error),
            None if watched.is_exhausted() => break ConnectionEnd::Refused(Failure::Http2Excess),
            None if rest.end == Some(RestEnd::IsWanted) && watched.stream().unacknowledged() == 0 => {
                break ConnectionEnd::GivesWay;
            }
            None if rest.is_last || rest.end.is_some() => break ConnectionEnd::Ours,
            None => break ConnectionEnd::Theirs,
        };
        if tally.is_abusive() {
            break ConnectionEnd::Refused(Failure::Http2TakenBack);
        }
        let odd_path = watched.malformed().take_path(respond.stream_id().as_u32());
        if watched.malformed().take(respond.stream_id().as_u32()) {
            // RFC 9113 8.1.1. Count it as cancelled, so that a flood of malformed requests ends the
            // connection.
            watched.malformed().expect_reset(respond.stream_id().as_u32());
            respond.send_reset(h2::Reason::PROTOCOL_ERROR);
            watched.uploads().forget(respond.stream_id().as_u32());
            let (origin, now) = (client_info.route.backend, service.reactor.now());
            service.journal.on_failure(client_info, origin, &Failure::Http2Malformed, now);
            tally.on_begin();
            tally.on_end(true);
            continue;
        }
        // Each stream may need a connection to the origin. The client connection's own permit covers one.
        let permit = if tally.open.get() > 0 { service.sessions.take(1) } else { None };
        if permit.is_none() && tally.open.get() > 0 {
            // RFC 9113 8.7: the client may repeat the request.
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            watched.uploads().forget(respond.stream_id().as_u32());
            continue;
        }
        tally.on_begin();
        let (tally, client_info, service) = (Rc::clone(&tally), Rc::clone(client_info), Rc::clone(service));
        let (access, malformed) = (Rc::clone(access), Rc::clone(watched.malformed()));
        let uploads = Rc::clone(watched.uploads());
        let reactor = service.reactor.clone();
        reactor.spawn(async move {
            let mut open = Open { tally, was_reset: false };
            let watched = stream::Watched { malformed: &malformed, uploads: &uploads, odd_path };
            open.was_reset = stream::serve(&service, &client_info, &access, watched, request, respond).await;
            drop(permit);
        });
    };
    match &ended {
        ConnectionEnd::Refused(Failure::Http2Excess | Failure::Http2TakenBack) => {
            connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
        }
        ConnectionEnd::Ours | ConnectionEnd::GivesWay if rest.end.is_some() => {
            connection.abrupt_shutdown(h2::Reason::NO_ERROR);
        }
        _ => {}
    }
    // Send the remaining frames, GOAWAY among them, if the client takes them in time.
    let closed = poll_fn(|cx| connection.poll_closed(cx));
    let _ = service.reactor.timeout(service.settings.timeouts.linger, closed).await;
    ended
}

/// Asks the kernel for a request that has come meanwhile: it is served. `None`: there is none.
fn poll_last<C: ClientStream>(
    connection: &mut Connection<CountedStream<C>, Bytes>,
    watched: &CountedStream<C>,
    cx: &mut Context<'_>,
) -> Poll<Accepted> {
    watched.stream().look_again();
    match connection.poll_accept(cx) {
        Poll::Pending if watched.is_exhausted() || watched.stream().is_read_out() => Poll::Ready(None),
        // A request, the end, or the end of this turn's allowance.
        accepted => accepted,
    }
}

/// An open stream. Dropping this, even by a panic, counts its end.
struct Open {
    tally: Rc<Tally>,
    was_reset: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.tally.on_end(self.was_reset);
    }
}
