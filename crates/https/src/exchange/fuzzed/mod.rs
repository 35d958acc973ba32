//! Whole exchanges on simulated connections, by any schedule: what clients and origins send, in which pieces,
//! when they end or reset, how much they read, how dials go, and how time passes. The code under test is
//! `serve_http1` with all below it, on a reactor without a kernel.
//!
//! The parties know what they have sent. What truepeer sends is read by a plain reader (`plain.rs`) and
//! compared with that.

mod client;
mod line;
mod origin;
mod plain;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use truepeer_http::fuzzing::Given;
use truepeer_origin::http2::Http2Pool;
use truepeer_origin::{
    ClientInfo, Dial, DialError, Dialled, HttpSettings, Offer, OriginHealth, OriginProtocol, Origins, Pool,
};
use truepeer_policy::{BackendAddr, ClientAddr, OnConflict, Route, SenderAddr};
use truepeer_session::Journal;
use truepeer_session::budget::Budget;
use truepeer_session::connect_as::ConnectError;
use truepeer_session::counters::Shard;
use truepeer_stream::reactor::Reactor;
use truepeer_sys::Named as _;

use self::client::{Client, address};
use self::line::{Line, Near};
use self::origin::Origin;
use super::{RequestJournal, Service, Sharing, serve_http1};

/// So many turns one event may cause.
const MOST_TURNS: usize = 500;
/// So many connections to the origin there are at most: truepeer dials in vain from then on.
const MOST_ORIGINS: usize = 40;
const SESSIONS: usize = 1000;
const BACKLOG_BYTES: usize = 1 << 20;

/// Each step of the schedule is a byte, and a few more that describe it.
///
/// # Panics
/// A promise is broken: see the assertions of `client.rs`, `origin.rs` and [`Bed::finish`].
pub fn any_exchanges(bytes: &[u8]) {
    let mut given = Given(bytes);
    let mut bed = Bed::new(&mut given);
    while !given.is_empty() {
        bed.step(&mut given);
    }
    bed.answer_the_rest();
    bed.finish();
}

/// A body that looks like further messages and the end of chunks. Bodies with different numbers differ.
fn body(number: usize, length: usize) -> Vec<u8> {
    let text = format!(
        "0\r\n\r\nGET /smuggled{number} HTTP/1.1\r\nHost: b\r\n\r\nHTTP/1.1 200 OK\r\nX-Tag: smuggled\r\nContent-Length: 0\r\n\r\n"
    );
    text.bytes().cycle().take(length).collect()
}

/// Appends a body in chunks, with extensions.
fn chunked(text: &mut Vec<u8>, body: &[u8], number: usize, trailer: Option<&str>) {
    let mut rest = body;
    for round in number.. {
        let (chunk, after) = rest.split_at([7, 300, 5000, 1][round % 4].min(rest.len()));
        if chunk.is_empty() {
            break;
        }
        let extension = if round % 3 == 0 { ";a=b" } else { "" };
        text.extend_from_slice(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
        text.extend_from_slice(chunk);
        text.extend_from_slice(b"\r\n");
        rest = after;
    }
    text.extend_from_slice(b"0\r\n");
    if let Some(check) = trailer {
        text.extend_from_slice(format!("X-Check: {check}\r\n").as_bytes());
    }
    text.extend_from_slice(b"\r\n");
}

/// How an attempt to connect to the origin goes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Dialling {
    #[default]
    Accepted,
    Refused,
    TimesOut,
    /// No descriptor is left.
    Lacking,
    /// It goes on until this changes.
    Waits,
}

#[derive(Default)]
struct Dials {
    next: Dialling,
    waiting: Vec<Waker>,
    lines: Vec<Line>,
    window: usize,
    most: usize,
}

/// The origin as truepeer dials it.
#[derive(Clone, Default)]
struct Dialler(Rc<RefCell<Dials>>);

impl Dial for Dialler {
    type Stream = Near;

    fn uses_tls(&self) -> bool {
        false
    }

    async fn dial(&self, _: &ClientInfo, _: Offer) -> Result<Dialled<Near>, DialError> {
        poll_fn(|cx| {
            let mut dials = self.0.borrow_mut();
            if dials.next == Dialling::Waits {
                dials.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let mut dials = self.0.borrow_mut();
        let fails = |errno| {
            let failed: io::Result<()> = Err(io::Error::from_raw_os_error(errno));
            failed.named("connect").map_err(|error| DialError::Connect(ConnectError::Call(error)))
        };
        match dials.next {
            Dialling::Refused => fails(libc::ECONNREFUSED)?,
            Dialling::Lacking => fails(libc::EMFILE)?,
            Dialling::TimesOut => return Err(DialError::Timeout(Duration::from_secs(5))),
            _ if dials.lines.len() == MOST_ORIGINS => fails(libc::ENETUNREACH)?,
            _ => {}
        }
        let (line, near) = Line::new(dials.window, dials.most);
        dials.lines.push(line);
        Ok(Dialled { stream: near, speaks_http2: false })
    }
}

struct Bed {
    reactor: Reactor,
    service: Rc<Service<Dialler>>,
    now: Instant,
    passed: Duration,
    dialler: Dialler,
    clients: Vec<Client>,
    origins: Vec<Origin>,
    /// Events tell of all that has happened.
    took_all_events: bool,
    /// No event so far permits that a request stays without its origin's response.
    is_calm: bool,
    /// The tasks that are no connections.
    tasks: usize,
}

impl Bed {
    fn new(given: &mut Given<'_>) -> Self {
        let how = given.byte();
        let reactor = Reactor::new().expect("a reactor");
        let (sessions, dialler) = (Budget::new(SESSIONS), Dialler::default());
        let most_kept = if how & 1 == 0 { 8 } else { 1 };
        let pool = Rc::new(Pool::new(most_kept, Duration::from_secs(60), sessions.clone()));
        reactor.spawn(Pool::keep(Rc::downgrade(&pool), reactor.clone()));
        let mut settings = HttpSettings::default();
        if how & 2 != 0 {
            settings.max_requests = Some(2);
        }
        if how & 4 != 0 {
            settings.max_body = Some(3000);
        }
        if how & 8 != 0 {
            settings.min_rate = 0;
        }
        let (journal, shard) = journal();
        let service = Rc::new(Service {
            reactor: reactor.clone(),
            settings,
            challenges: None,
            origins: Origins::new(
                truepeer_origin::Origin {
                    dialler: dialler.clone(),
                    protocol: OriginProtocol::Http1,
                    pool,
                    http2: Http2Pool::new(&reactor, 8, Duration::from_secs(60), sessions.clone()),
                    health: OriginHealth::default(),
                },
                Vec::new(),
            ),
            sessions,
            backlog: Budget::new(BACKLOG_BYTES),
            sharing: [Sharing::All, Sharing::All, Sharing::ByClient, Sharing::ByConnection]
                [usize::from(how >> 4 & 3)],
            site: None,
            retry_timeout: if how & 0x40 == 0 { Duration::from_secs(1) } else { Duration::ZERO },
            idle: crate::downstream::IdleConnections::new(1).of(0),
            journal: RequestJournal::new(journal, shard, false),
        });
        let tasks = reactor.tasks();
        let mut bed = Self {
            reactor,
            service,
            // Later than the real time: the last events are always recent.
            now: Instant::now() + Duration::from_secs(3600),
            passed: Duration::ZERO,
            dialler,
            clients: Vec::new(),
            origins: Vec::new(),
            took_all_events: how & 0x80 != 0,
            is_calm: true,
            tasks,
        };
        bed.resize(0);
        for number in 0..4 {
            bed.connect(number);
        }
        bed
    }

    fn connect(&mut self, number: usize) {
        let (window, most) = {
            let dials = self.dialler.0.borrow();
            (dials.window, dials.most)
        };
        let (line, near) = Line::new(window, most);
        let info = client_info(SocketAddr::from((address(number), 5000)));
        self.reactor.spawn(serve_http1(near, Vec::new(), info, Rc::clone(&self.service)));
        self.clients.push(Client::new(line));
    }

    /// The sizes of all connections: how much is sent before the other end reads, and how much one call reads
    /// or writes.
    fn resize(&mut self, how: u8) {
        let window = [1 << 16, 3000, 100, 1 << 16][usize::from(how & 3)];
        let most = [1 << 16, 1000, 7, 1][usize::from(how >> 2 & 3)];
        let mut dials = self.dialler.0.borrow_mut();
        (dials.window, dials.most) = (window, most);
        drop(dials);
        for line in self.lines() {
            line.resize(window, most);
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.clients.iter().map(|client| &client.line).chain(self.origins.iter().map(|origin| &origin.line))
    }

    fn step(&mut self, given: &mut Given<'_>) {
        let step = given.byte();
        let (client, origin) =
            (usize::from(step >> 4 & 3), self.origins.len().checked_sub(1 + usize::from(step >> 4 & 3)));
        // Without an event for it, at first.
        let is_unreported = step & 0x80 != 0;
        match step & 15 {
            0 | 1 => {
                if !self.clients[client].has_ended {
                    self.clients[client].ask(client, given);
                    let Client { asked, delivered, text, .. } = &self.clients[client];
                    self.is_calm &= asked.last().is_none_or(|asked| !asked.is_ambiguous);
                    let most = self.service.settings.max_body.unwrap_or(u64::MAX);
                    self.is_calm &= asked.last().is_none_or(|asked| asked.body.len() as u64 <= most);
                    // Mostly all of it at once.
                    if step & 1 == 0 {
                        self.send(client, text.len() - delivered);
                    }
                }
            }
            2 | 3 => self.send(client, some(given.byte())),
            4 => self.clients[client].line.take(some(given.byte())),
            5 => self.end_client(client, given.byte() & 1 != 0),
            6..=11 => {
                if let Some(origin) = origin {
                    self.step_of_origin(step & 15, origin, is_unreported, given);
                }
            }
            12 => self.pass(given.byte()),
            13 => self.dial_as(given.byte()),
            14 => self.send_raw(client, origin, given),
            _ => self.set(given.byte()),
        }
        // Without a report, only `look_again` finds it before the next step that reports.
        if !is_unreported {
            self.report();
        }
        if step & 0x40 == 0 {
            self.run();
        }
    }

    fn send(&mut self, client: usize, most: usize) {
        let client = &mut self.clients[client];
        if client.has_ended || client.line.is_reset() || client.line.ends().is_closed {
            return;
        }
        let to = client.text.len().min(client.delivered.saturating_add(most));
        client.line.send(&client.text[client.delivered..to]);
        client.delivered = to;
    }

    fn end_client(&mut self, client: usize, by_reset: bool) {
        self.is_calm = false;
        let client = &mut self.clients[client];
        if by_reset {
            client.line.reset();
        } else if !client.line.is_reset() {
            client.line.end();
            client.has_ended = true;
        }
    }

    fn step_of_origin(&mut self, step: u8, number: usize, is_unreported: bool, given: &mut Given<'_>) {
        let origin = &mut self.origins[number];
        let is_gone = origin.has_ended || origin.line.is_reset();
        match step {
            6 | 7 if !is_gone => {
                origin.reply(number, &self.clients, given);
                if step == 6 {
                    self.send_reply(number, usize::MAX, is_unreported);
                }
            }
            8 | 9 if !is_gone => self.send_reply(number, some(given.byte()), is_unreported),
            10 => origin.line.take(some(given.byte())),
            11 => {
                let by_reset = given.byte() & 1 != 0;
                self.is_calm &= origin.is_idle() && !is_unreported && !self.took_all_events;
                if by_reset {
                    origin.line.reset();
                } else if !is_gone {
                    origin.line.end();
                    origin.has_ended = true;
                }
            }
            _ => {}
        }
    }

    fn send_reply(&mut self, number: usize, most: usize, is_unreported: bool) {
        let origin = &mut self.origins[number];
        origin.send(most, is_unreported && self.took_all_events);
        self.is_calm &= !origin.is_ahead();
    }

    fn pass(&mut self, how: u8) {
        let millis = [1, 50, 300, 1100, 2100, 5100, 10_100, 31_000, 61_000][usize::from(how) % 9];
        let passed = Duration::from_millis(millis);
        self.now += passed;
        self.passed += passed;
        self.is_calm &= self.passed < Duration::from_secs(4);
    }

    fn dial_as(&mut self, how: u8) {
        use Dialling::{Accepted, Lacking, Refused, TimesOut, Waits};
        let next = [Accepted, Refused, TimesOut, Lacking, Waits][usize::from(how) % 5];
        self.is_calm &= matches!(next, Accepted | Waits);
        let mut dials = self.dialler.0.borrow_mut();
        dials.next = next;
        let waiting = std::mem::take(&mut dials.waiting);
        drop(dials);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Any bytes. The messages behind them can't be checked.
    fn send_raw(&mut self, client: usize, origin: Option<usize>, given: &mut Given<'_>) {
        let is_clients = given.byte() & 1 == 0;
        let text = given.text();
        self.is_calm = false;
        if is_clients {
            let sender = &mut self.clients[client];
            if sender.has_ended || sender.line.is_reset() {
                return;
            }
            let asked = sender.asked.len();
            sender.raw_from.get_or_insert(asked);
            sender.text.extend_from_slice(text);
            self.send(client, usize::MAX);
        } else if let Some(origin) = origin.map(|origin| &mut self.origins[origin])
            && !origin.has_ended
        {
            let goes_on = origin.replies.last().is_some_and(|reply| reply.is_until_close);
            let from = origin.replies.len() - usize::from(goes_on);
            origin.raw_from.get_or_insert(from);
            origin.text.extend_from_slice(text);
            origin.send(usize::MAX, true);
        }
    }

    fn set(&mut self, how: u8) {
        match how >> 6 {
            0 | 1 => self.resize(how),
            2 => self.took_all_events ^= true,
            _ if how & 0x3f == 0 => {
                self.is_calm = false;
                self.reactor.remote().drain();
            }
            _ => {}
        }
    }

    fn report(&self) {
        self.lines().for_each(Line::report);
    }

    /// Lets truepeer work, and checks what it has sent.
    fn run(&mut self) {
        let is_done = self.reactor.simulate(self.now, self.took_all_events, MOST_TURNS);
        assert!(is_done, "the loop doesn't come to rest");
        assert_eq!(self.reactor.panics(), 0);
        let dials = self.dialler.0.borrow();
        self.origins.extend(dials.lines[self.origins.len()..].iter().cloned().map(Origin::new));
        self.is_calm &= dials.lines.len() < MOST_ORIGINS;
        drop(dials);
        for origin in &mut self.origins {
            origin.check(&mut self.clients, self.service.sharing);
        }
        for (number, client) in self.clients.iter_mut().enumerate() {
            client.check(number, &self.origins);
        }
        for &(client, slot) in self.origins.iter().flat_map(|origin| &origin.begun) {
            let client = &self.clients[client];
            assert!(
                client.is_raw() || client.slot >= slot,
                "a request before the response to an earlier one"
            );
        }
    }

    /// The parties send the rest, read all, and answer every request.
    fn answer_the_rest(&mut self) {
        self.dial_as(0);
        // Each round answers a request of each client.
        let rounds = 3 + 2 * self.clients.iter().map(|client| client.asked.len()).sum::<usize>();
        for _ in 0..rounds {
            for client in 0..self.clients.len() {
                self.send(client, usize::MAX);
            }
            for number in 0..self.origins.len() {
                self.answer(number);
            }
            for _ in 0..3 {
                self.lines().for_each(|line| line.take(usize::MAX));
                self.report();
                self.run();
            }
            self.lines().for_each(|line| line.resize(1 << 20, 1 << 20));
        }
        let is_answered = |client: &Client| client.is_done();
        assert!(!self.is_calm || self.clients.iter().all(is_answered), "a request has no response");
    }

    fn answer(&mut self, number: usize) {
        let origin = &mut self.origins[number];
        if origin.has_ended || origin.line.is_reset() || origin.raw_from.is_some() {
            return;
        }
        if origin.replies.len() < origin.begun.len() {
            let (client, slot) = origin.begun[origin.replies.len()];
            if origin.whole == origin.begun.len() {
                origin.reply_as(number, &self.clients, 0, 10);
            } else if self.clients[client].asked[slot].expects {
                origin.line.send(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
        }
        origin.send(usize::MAX, false);
        if origin.replies.last().is_some_and(|reply| reply.is_until_close) {
            origin.line.end();
            origin.has_ended = true;
        }
    }

    /// All parties stop. Each connection ends by a time-out, and what was taken is given back.
    fn finish(mut self) {
        // The longest time-out is that of a tunnel, an hour.
        for _ in 0..80 {
            if self.lines().all(|line| line.ends().is_closed) {
                break;
            }
            self.now += Duration::from_secs(61);
            self.report();
            self.run();
        }
        assert!(self.reactor.tasks() <= self.tasks, "a connection doesn't end");
        assert_eq!(self.service.sessions.used(), 0, "a kept connection doesn't end");
        assert_eq!(self.service.backlog.used(), 0);
        assert!(self.lines().all(|line| line.ends().is_closed));
        self.reactor.remote().drain();
        self.run();
        assert_eq!(self.reactor.tasks(), 0);
    }
}

/// A number of bytes.
fn some(byte: u8) -> usize {
    match usize::from(byte) {
        255 => usize::MAX / 2,
        byte @ 128.. => (byte - 127) * 200,
        byte => byte + 1,
    }
}

/// The client, connected directly.
pub(super) fn client_info(client: SocketAddr) -> ClientInfo {
    let route = Route {
        client: ClientAddr::new(client),
        origin: truepeer_policy::Origin::NoHeader,
        backend: BackendAddr::new(SocketAddr::from(([192, 0, 2, 1], 80))),
        source: None,
        on_conflict: OnConflict::Ephemeral,
        send_proxy: None,
        destination: None,
        special: None,
    };
    ClientInfo::new(SenderAddr::new(client), route)
}

/// One for all executions of a thread.
fn journal() -> (Arc<Journal>, Arc<Shard>) {
    thread_local! {
        static JOURNAL: (Arc<Journal>, Arc<Shard>) = {
            let journal = Arc::<Journal>::default();
            let shard = journal.counters.shard(truepeer_session::ListenerId::new(0));
            (journal, shard)
        };
    }
    JOURNAL.with(Clone::clone)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::fuzzing::steps;

    /// The origin resets its connection behind a response without a length. truepeer's write meets the reset;
    /// reads find an orderly end.
    #[test]
    fn a_reset_that_a_write_has_met_is_no_end_of_a_response() {
        super::any_exchanges(&[0, 15, 6, 0, 0, 0, 6, 138, 0, 11, 221]);
    }

    proptest! {
        #[test]
        fn any_schedule_of_exchanges_keeps_the_promises(bytes in steps()) {
            super::any_exchanges(&bytes);
        }
    }
}
