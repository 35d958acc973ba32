//! Whole connections in memory: a client's bytes, an origin that follows a script, and the bytes that each
//! received.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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
use truepeer_policy::{BackendAddr, ClientAddr, OnConflict, Origin, Route, SenderAddr};
use truepeer_session::budget::Budget;
use truepeer_session::connect_as::ConnectError;
use truepeer_sys::Named as _;

use super::*;
use crate::client_info::ClientInfo;
use crate::origin::{Dial, DialError, Pool};
use crate::reactor::Reactor;
use crate::stream::Connection;

mod drains;
mod ends;

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
    lacking: Rc<Cell<usize>>,
}

/// A connection to an origin. Its writes are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: DuplexStream,
    writes: Rc<Cell<usize>>,
}

impl Connection for Counted {}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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

impl Dial for Scripts {
    type Stream = Counted;

    async fn dial(&self, _: &ClientInfo) -> Result<Counted, DialError> {
        self.dialled.set(self.dialled.get() + 1);
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
        Ok(Counted { stream, writes: Rc::clone(&self.writes) })
    }
}

impl Scripts {
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
    let client: SocketAddr = "203.0.113.7:5000".parse().unwrap();
    let route = Route {
        client: ClientAddr::new(client),
        origin: Origin::NoHeader,
        backend: BackendAddr::new("192.0.2.1:80".parse().unwrap()),
        source: None,
        on_conflict: OnConflict::Ephemeral,
        send_proxy: None,
        destination: None,
        special: None,
    };
    ClientInfo::new(SenderAddr::new(client), route)
}

pub(crate) fn bed(settings: HttpSettings) -> Bed {
    retrying_bed(settings, Duration::ZERO)
}

fn retrying_bed(settings: HttpSettings, retry_timeout: Duration) -> Bed {
    let reactor = Reactor::new().unwrap();
    let (origin, sessions) = (Scripts::default(), Budget::new(1000));
    let journal = Arc::<truepeer_session::Journal>::default();
    let shard = journal.counters.shard(truepeer_session::ListenerId::new(0));
    let service = Rc::new(Service {
        reactor: reactor.clone(),
        settings,
        dialler: origin.clone(),
        pool: Rc::new(Pool::new(8, Duration::from_secs(60), sessions.clone())),
        sessions,
        backlog: Budget::new(1 << 20),
        sharing: Sharing::All,
        retry_timeout,
        idle: crate::downstream::IdleConnections::new(1).of(0),
        journal: RequestJournal::new(journal, shard, false),
    });
    Bed { reactor, origin, service }
}

impl Bed {
    /// A client's end of a new connection.
    fn client(&self) -> DuplexStream {
        let (client, ours) = duplex(1 << 16);
        self.reactor.spawn(serve_http1(ours, client_info(), Rc::clone(&self.service)));
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

#[test]
fn requests_of_one_connection_are_answered_in_order_over_one_connection() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(
            &mut client,
            "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        )
        .await;
        for path in ["/1", "/2"] {
            let request = until(&mut origin, "\r\n\r\n").await;
            assert!(request.starts_with(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n")), "{request}");
            assert!(request.contains("X-Forwarded-For: 203.0.113.7\r\n"), "{request}");
            say(&mut origin, &format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{path}")).await;
        }
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n/1\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n/2"
        );
    });
    assert_eq!(bed.origin.dialled.get(), 1);
}

#[test]
fn bodies_and_trailers_pass_with_new_framing() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(
            &mut client,
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n005;x=y\r\nhello\r\n",
        )
        .await;
        let head = until(&mut origin, "\r\n\r\n").await;
        assert!(
            head.contains("Transfer-Encoding: chunked\r\n") && !head.contains("Content-Length"),
            "{head}"
        );
        assert_eq!(until(&mut origin, "hello\r\n").await, "5\r\nhello\r\n");
        say(&mut client, "0\r\nX-Sum: 1\r\n\r\n").await;
        assert_eq!(until(&mut origin, "\r\n\r\n").await, "0\r\nX-Sum: 1\r\n\r\n");
        say(
            &mut origin,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0\r\nX-End: 2\r\n\r\n",
        )
        .await;
        let response = until(&mut client, "X-End: 2\r\n\r\n").await;
        assert!(response.ends_with("\r\n\r\n3\r\nabc\r\n0\r\nX-End: 2\r\n\r\n"), "{response}");
    });
    assert_eq!(bed.service.pool.len(), 1);
}

#[test]
fn a_body_without_length_becomes_chunks_or_the_connections_end() {
    let bed = bed(HttpSettings::default());
    for (version, body) in [("1.1", "3\r\nabc\r\n0\r\n\r\n"), ("1.0", "abc")] {
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, &format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n")).await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 200 OK\r\n\r\nabc").await;
            drop(origin);
            assert!(until(&mut client, body).await.ends_with(&format!("\r\n\r\n{body}")));
        });
    }
}

#[test]
fn head_has_the_length_but_no_body() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n").await;
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n"
        );
    });
}

#[test]
fn an_idempotent_request_is_sent_again_when_its_connection_has_died() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut first) = (bed.client(), bed.origin.next_connection());
    let mut second = bed.origin.next_connection();
    bed.run(async move {
        say(&mut client, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut first, "\r\n\r\n").await;
        say(&mut first, "HTTP/1.1 204 No Content\r\n\r\n").await;
        until(&mut client, "\r\n\r\n").await;
        // It accepts the second request before it dies, so nothing announces its end.
        say(&mut client, "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut first, "\r\n\r\n").await;
        drop(first);
        assert!(until(&mut second, "\r\n\r\n").await.starts_with("GET /2 "));
        say(&mut second, "HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 204 No Content\r\n\r\n");
    });
}

#[test]
fn other_requests_are_not_sent_again() {
    for request in
        ["POST / HTTP/1.1\r\nHost: a\r\n\r\n", "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"]
    {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        let _other = bed.origin.next_connection();
        bed.run(async move {
            say(&mut client, request).await;
            until(&mut origin, "\r\n\r\n").await;
            drop(origin);
            assert!(rest(&mut client).await.starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
        });
        assert_eq!(bed.origin.dialled.get(), 1);
    }
}

#[test]
fn a_refusal_has_a_status_and_ends_the_connection() {
    let settings =
        HttpSettings { methods: vec!["GET".to_owned()], max_body: Some(4), ..HttpSettings::default() };
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\n\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", 413),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n", 417),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 504), // there is no origin
    ] {
        let bed = bed(settings.clone());
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, request).await;
            let response = rest(&mut client).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {response}");
            assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
        });
    }
}

#[test]
fn heads_that_are_too_long_have_their_own_statuses() {
    let long = "x".repeat(40 << 10);
    for (request, status) in
        [(format!("GET /{long}"), 414), (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}"), 431)]
    {
        let bed = bed(HttpSettings::default());
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, &request).await;
            assert!(rest(&mut client).await.starts_with(&format!("HTTP/1.1 {status} ")));
        });
    }
}

#[test]
fn origins_that_speak_no_http_are_not_passed_on() {
    for response in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 1\n\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-",
    ] {
        let bed = bed(HttpSettings::default());
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, response).await;
            drop(origin);
            let told = rest(&mut client).await;
            assert!(told.starts_with("HTTP/1.1 502 "), "{response:?}: {told}");
        });
    }
}

#[test]
fn a_truncated_response_is_not_passed_on_as_complete() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        drop(origin);
        assert!(rest(&mut client).await.ends_with("\r\n\r\n3\r\nabc\r\n"));
    });
    assert!(bed.service.pool.is_empty());
}

#[test]
fn unsolicited_bytes_are_not_taken_for_a_response() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let pool = Rc::clone(&bed.service.pool);
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        until(&mut client, "\r\n\r\n").await;
        assert!(pool.is_empty());
    });
}

#[test]
fn a_body_is_held_back_until_the_origin_wants_it() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            .await;
        assert!(until(&mut origin, "\r\n\r\n").await.contains("Expect: 100-continue\r\n"));
        say(&mut origin, "HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        say(&mut client, "ok").await;
        until(&mut origin, "ok").await;
        say(
            &mut origin,
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
    });
    assert_eq!(bed.service.pool.len(), 1);
}

/// It never sends a final response, and each 1xx comes in time.
#[test]
fn endless_interim_responses_are_distinguished_from_slowness() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let (service, counters) = (Rc::clone(&bed.service), Rc::clone(&bed.service));
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, &"HTTP/1.1 102 Processing\r\n\r\n".repeat(1000)).await;
        let got = rest(&mut client).await;
        assert_eq!(got.matches("HTTP/1.1 102 ").count(), 64, "{got}");
        assert!(got.contains("HTTP/1.1 502 Bad Gateway\r\n"), "{got}");
        drop(service);
    });
    let refusals = counters.journal.refusals();
    assert_eq!(refusals.get("origin_too_many_interim"), Some(&1), "{refusals:?}");
}

#[test]
fn an_origin_that_does_not_know_expect_gets_the_body_all_the_same() {
    let timeouts = HttpTimeouts { proceed: Duration::from_millis(10), ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            .await;
        assert_eq!(until(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        say(&mut client, "ok").await;
        until(&mut origin, "\r\n\r\nok").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        until(&mut client, "Content-Length: 0\r\n\r\n").await;
    });
}

#[test]
fn an_origin_may_answer_before_the_body_and_without_it() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
            .await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    });
    assert!(bed.service.pool.is_empty());
}

#[test]
fn an_upgrade_becomes_a_tunnel_with_independent_ends() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await;
        let request = until(&mut origin, "\r\n\r\n").await;
        assert!(request.contains("Connection: upgrade\r\nUpgrade: websocket\r\n"), "{request}");
        say(
            &mut origin,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi",
        )
        .await;
        let response = until(&mut client, "\r\n\r\nhi").await;
        assert!(response.contains("Connection: upgrade\r\nUpgrade: websocket\r\n"), "{response}");
        say(&mut client, "\0\x01hello").await;
        until(&mut origin, "\0\x01hello").await;
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut origin).await, "");
        say(&mut origin, "bye").await;
        drop(origin);
        assert_eq!(rest(&mut client).await, "bye");
    });
}

#[test]
fn timeouts_are_answered_with_their_status() {
    let short = Duration::from_millis(20);
    let timeouts = HttpTimeouts { head: short, body: short, response: short, ..HttpTimeouts::default() };
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost", 408),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx", 408),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 504),
    ] {
        let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
        let (mut client, _origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, request).await;
            let response = rest(&mut client).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {response}");
        });
    }
}

#[test]
fn a_silent_connection_is_closed_without_a_word() {
    let timeouts = HttpTimeouts { keep_alive: Duration::from_millis(20), ..HttpTimeouts::default() };
    let bed = bed(HttpSettings { timeouts, ..HttpSettings::default() });
    let mut client = bed.client();
    bed.run(async move { assert_eq!(rest(&mut client).await, "") });
}

#[test]
fn a_slow_reader_costs_a_few_buffers_only() {
    let bed = bed(HttpSettings::default());
    let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
    let sent = Rc::new(Cell::new(0_usize));
    let (count, reactor) = (Rc::clone(&sent), bed.reactor.clone());
    bed.reactor.spawn(async move {
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n").await;
        while count.get() < 10_000_000 && origin.write_all(&[b'x'; 1000]).await.is_ok() {
            count.set(count.get() + 1000);
        }
    });
    bed.run(async move {
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut before = usize::MAX;
        while before != sent.get() {
            before = sent.get();
            reactor.sleep(Duration::from_millis(50)).await;
        }
        assert!(sent.get() < 500_000, "{} bytes were taken from the origin", sent.get());
        until(&mut client, "\r\n\r\n").await;
        let mut body = vec![0; 10_000_000];
        client.read_exact(&mut body).await.unwrap();
        assert!(body.iter().all(|&byte| byte == b'x'));
    });
}

#[test]
fn an_authenticated_origin_connection_serves_one_client_only() {
    let bed = bed(HttpSettings::default());
    let (mut alice, mut mallory) = (bed.client(), bed.client());
    let (mut hers, mut others) = (bed.origin.next_connection(), bed.origin.next_connection());
    let (pool, reactor) = (Rc::clone(&bed.service.pool), bed.reactor.clone());
    bed.run(async move {
        let challenge = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n";
        for (fields, answer) in [
            ("", challenge),
            ("Authorization: NTLM TlRMTVNTUAAD\r\n", "HTTP/1.1 204 No Content\r\n\r\n"),
            // From now on identified only by the connection.
            ("", "HTTP/1.1 204 No Content\r\n\r\n"),
        ] {
            say(&mut alice, &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).await;
            until(&mut hers, "\r\n\r\n").await;
            say(&mut hers, answer).await;
            until(&mut alice, "\r\n\r\n").await;
            say(&mut mallory, "GET /admin HTTP/1.1\r\nHost: a\r\n\r\n").await;
            until(&mut others, "\r\n\r\n").await;
            say(&mut others, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
            assert!(until(&mut mallory, "\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
        }
        assert_eq!(pool.len(), 2);
        drop(alice);
        while pool.len() > 1 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(rest(&mut hers).await, "");
    });
    assert_eq!(bed.origin.dialled.get(), 2);
}

#[test]
fn own_error_responses_to_head_have_no_body() {
    for request in [
        "HEAD / HTTP/1.1\r\nHost: a\r\nExpect: zzz\r\n\r\n",
        "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", // there is no origin
        "HEAD / HTTP/1.1\r\n\r\n",
        "HEAD / HTTP/1.1\nHost: a\n\n",
    ] {
        let bed = bed(HttpSettings::default());
        let mut client = bed.client();
        bed.run(async move {
            say(&mut client, request).await;
            let response = rest(&mut client).await;
            assert!(response.ends_with("\r\nConnection: close\r\n\r\n"), "{request:?}: {response}");
            assert!(response.contains("\r\nContent-Length: "), "{response}");
        });
    }
}

#[test]
fn a_request_waits_for_a_descriptor_as_long_as_for_an_origin() {
    for (time_limit, answer) in
        [(Duration::from_secs(60), "200 OK"), (Duration::ZERO, "503 Service Unavailable")]
    {
        let bed = retrying_bed(HttpSettings::default(), time_limit);
        bed.origin.lacking.set(3);
        let (mut client, mut origin) = (bed.client(), bed.origin.next_connection());
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
            if !time_limit.is_zero() {
                until(&mut origin, "\r\n\r\n").await;
                say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            }
            let said = rest(&mut client).await;
            assert!(said.starts_with(&format!("HTTP/1.1 {answer}\r\n")), "{said}");
        });
    }
}
