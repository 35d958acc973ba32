//! Clients of all kinds, each with an address of its own. Everything that goes wrong is kept with the phase
//! in which it went wrong.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::net::sockopt;
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::servers::dns;
use truepeer_testbed::{client, datagrams, dropped_packets, wait_for};

use crate::stage::{CLIENTS, FILE_BYTES, Stage, address};

/// What a client does, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A session over HAProxy's TCP listener with this place, with this many rounds of data.
    Stream { place: usize, exchanges: usize },
    /// One transfer both ways, whose bytes move through pipes. HAProxy 2.6 would end one in some 400 before
    /// it has sent all bytes, so the client writes its header itself.
    Bulk,
    /// The client resets its session in the middle of its data.
    Reset { place: usize },
    /// The client ends its direction at once, and gets everything after that.
    HalfClose { place: usize },
    /// Requests on one connection over HAProxy's HTTP listener with this place, with this pause before each.
    Web { place: usize, pause: Duration },
    /// A query from the same socket each time.
    Dns,
}

/// The place of HAProxy's listener that leads to HTTP/2.
const HTTP2: usize = 1;

const KINDS: [Kind; CLIENTS as usize] = [
    Kind::Stream { place: 0, exchanges: 2 },
    Kind::Stream { place: 0, exchanges: 20 },
    Kind::Stream { place: 0, exchanges: 100 },
    Kind::Stream { place: 1, exchanges: 2 },
    Kind::Stream { place: 1, exchanges: 20 },
    Kind::Stream { place: 1, exchanges: 100 },
    Kind::Stream { place: 2, exchanges: 20 },
    Kind::Stream { place: 2, exchanges: 100 },
    Kind::Bulk,
    Kind::Reset { place: 0 },
    Kind::Reset { place: 2 },
    Kind::HalfClose { place: 0 },
    Kind::HalfClose { place: 2 },
    Kind::Web { place: 0, pause: Duration::from_millis(3) },
    Kind::Web { place: 0, pause: Duration::from_millis(40) },
    Kind::Web { place: 0, pause: Duration::from_millis(300) },
    Kind::Web { place: HTTP2, pause: Duration::from_millis(3) },
    Kind::Web { place: HTTP2, pause: Duration::from_millis(300) },
    Kind::Dns,
    Kind::Dns,
    Kind::Dns,
];

/// The bytes of one exchange.
const CHUNK: usize = 20_000;
/// Of a bulk transfer, unless [`LONGEST`] ends it before.
const BULK_BYTES: usize = 8 << 20;
const BULK_CHUNK: usize = 256 << 10;
/// A session over TCP ends after this time even if it has exchanges left: a stop waits for sessions only as
/// long as `drain-timeout` says (6 s and more), and on a busy machine 100 exchanges take longer.
const LONGEST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);
/// How long an answer over UDP may take: on a busy machine a restart takes seconds.
const ANSWER: Duration = Duration::from_secs(60);
const REQUESTS_EACH: usize = 25;

pub(crate) struct Load<'a> {
    stage: &'a Stage,
    is_over: AtomicBool,
    phase: Mutex<String>,
    failures: Mutex<Vec<String>>,
    /// The asker of each name.
    asked: Mutex<HashMap<String, IpAddr>>,
    /// Upgrades and restarts so far, and requests over HTTP/2 that were repeated because of them.
    ends: AtomicUsize,
    repeated: AtomicUsize,
    /// Queries without an answer, and the packets that the kernel had dropped before.
    unanswered: Mutex<HashSet<String>>,
    dropped_before: u64,
    /// How often each client has succeeded.
    done: [AtomicUsize; CLIENTS as usize],
    /// How long its longest session or request has taken, in milliseconds.
    longest: [AtomicU64; CLIENTS as usize],
}

impl<'a> Load<'a> {
    pub(crate) fn new(stage: &'a Stage) -> anyhow::Result<Self> {
        Ok(Self {
            stage,
            is_over: AtomicBool::new(false),
            phase: Mutex::default(),
            failures: Mutex::default(),
            asked: Mutex::default(),
            ends: AtomicUsize::new(0),
            repeated: AtomicUsize::new(0),
            unanswered: Mutex::default(),
            dropped_before: dropped_packets()?,
            done: Default::default(),
            longest: Default::default(),
        })
    }

    /// Starts all clients.
    pub(crate) fn start<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>) {
        for (number, kind) in (0..).zip(KINDS) {
            scope.spawn(move || {
                let outcome = self.stage.client.run(|| self.run(number, kind));
                if let Err(error) = outcome.map_err(anyhow::Error::new).flatten() {
                    self.fail(format!("{kind:?}: {error:#}"));
                }
            });
        }
    }

    /// Waits until each client has succeeded once more, and gives what follows another name.
    pub(crate) fn begin_phase(&self, name: String) -> anyhow::Result<()> {
        let before = self.done.each_ref().map(|done| done.load(Ordering::Relaxed));
        let has_progress = || {
            let mut clients = self.done.iter().zip(before);
            clients.all(|(done, before)| done.load(Ordering::Relaxed) > before)
        };
        let outcome = wait_for("each client to succeed once more", has_progress);
        self.ends.fetch_add(usize::from(ends_a_process(&name)), Ordering::Relaxed);
        let phase = std::mem::replace(&mut *lock(&self.phase), name);
        outcome.with_context(|| format!("in {phase}; before: {before:?}, now: {:?}", self.done))
    }

    /// How often clients have succeeded.
    pub(crate) fn done(&self) -> u64 {
        self.done.iter().map(|done| done.load(Ordering::Relaxed) as u64).sum()
    }

    /// What the clients have done, and how long the longest time of each was.
    pub(crate) fn summary(&self) -> String {
        let clients = KINDS.iter().zip(&self.done).zip(&self.longest).map(|((kind, done), longest)| {
            let (done, longest) = (done.load(Ordering::Relaxed), longest.load(Ordering::Relaxed));
            format!("{kind:?}: {done}, {longest} ms at most")
        });
        clients.collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// `seen`: the clients that Unbound saw.
    pub(crate) fn verdict(&self, seen: &HashMap<String, IpAddr>) -> anyhow::Result<()> {
        let (repeated, ends) = (self.repeated.load(Ordering::Relaxed), self.ends.load(Ordering::Relaxed));
        let clients = KINDS.iter().filter(|kind| matches!(kind, Kind::Web { place: HTTP2, .. })).count();
        ensure!(
            repeated <= clients * ends,
            "{repeated} requests were repeated in {ends} upgrades and restarts"
        );
        let unanswered = lock(&self.unanswered);
        let (count, dropped) = (unanswered.len() as u64, dropped_packets()? - self.dropped_before);
        ensure!(count <= dropped, "{count} queries had no answer, {dropped} packets were dropped");
        let failures = lock(&self.failures);
        let drops = self.stage.drops()?;
        ensure!(
            failures.is_empty(),
            "{} failures (drops at full sockets: {drops}; {}):\n{}",
            failures.len(),
            self.summary(),
            failures.join("\n")
        );
        for (name, asker) in &*lock(&self.asked) {
            let is_lost = !seen.contains_key(name) && unanswered.contains(name);
            ensure!(
                is_lost || seen.get(name) == Some(asker),
                "{asker} asked for {name}, Unbound saw {:?}",
                seen.get(name)
            );
        }
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        !lock(&self.failures).is_empty()
    }

    /// Unbound must see this client ask for `name`.
    pub(crate) fn expect_question(&self, name: &str, asker: IpAddr) {
        lock(&self.asked).insert(name.to_owned(), asker);
    }

    pub(crate) fn fail(&self, failure: String) {
        let failure = format!("{}: {failure}", lock(&self.phase));
        lock(&self.failures).push(failure);
    }

    fn run(&self, number: u8, kind: Kind) -> anyhow::Result<()> {
        let from = SocketAddr::new(address(number), 0);
        let socket = datagrams::socket(from)?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.connect(self.stage.dns())?;
        for turn in 0_u64.. {
            if self.is_over() {
                break;
            }
            let begun = Instant::now();
            let outcome = match kind {
                Kind::Stream { place, exchanges } => stream(from, self.stage.streams()[place], exchanges),
                Kind::Bulk => bulk(from, self.stage.direct()),
                Kind::Reset { place } => reset(from, self.stage.streams()[place]),
                Kind::HalfClose { place } => half_close(from, self.stage.streams()[place]),
                Kind::Web { place, pause } => self.web(from, place, pause, number),
                Kind::Dns => self.query(&socket, from.ip(), turn),
            };
            let took = u64::try_from(begun.elapsed().as_millis())?;
            self.longest[usize::from(number)].fetch_max(took, Ordering::Relaxed);
            match outcome {
                Ok(()) => _ = self.done[usize::from(number)].fetch_add(1, Ordering::Relaxed),
                Err(failure) => self.fail(format!("{kind:?} from {from}: {failure:#}")),
            }
        }
        Ok(())
    }

    fn web(&self, from: SocketAddr, place: usize, pause: Duration, number: u8) -> anyhow::Result<()> {
        let to = self.stage.webs()[place];
        let mut stream = client::connect_from(from, to)?;
        for request in 0..REQUESTS_EACH {
            if self.is_over() {
                break;
            }
            thread::sleep(pause);
            // HAProxy still sends requests over HTTP/2 when it knows that the server will end the connection
            // (RFC 9113 6.8). If the last GOAWAY meets one, it ends its client's connection;
            // clients then repeat the request.
            let may_repeat = || place == HTTP2 && ends_a_process(&lock(&self.phase));
            // The phase may change while the request is under way.
            let could_repeat = may_repeat();
            let mut got = get(&mut stream, from.ip()).with_context(|| format!("request {request}"))?;
            if got == Got::NoResponse && (could_repeat || may_repeat()) {
                self.repeated.fetch_add(1, Ordering::Relaxed);
                stream = client::connect_from(from, to)?;
                got = get(&mut stream, from.ip()).with_context(|| format!("request {request}, again"))?;
            }
            ensure!(got == Got::Response, "request {request}: the connection ended without a response");
            self.done[usize::from(number)].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn query(&self, socket: &UdpSocket, from: IpAddr, turn: u64) -> anyhow::Result<()> {
        let id = u16::try_from(turn % (1 << 16))?;
        let name = format!("q{turn}-{}.test", from.to_string().replace('.', "-"));
        self.expect_question(&name, from);
        socket.send(&dns::query(id, &name))?;
        let answer = match datagrams::receive(socket) {
            Err(error) if is_time_out(&error) => {
                lock(&self.unanswered).insert(name);
                return Ok(());
            }
            answer => answer.with_context(|| name)?,
        };
        ensure!(dns::is_answer(&answer, id), "{answer:?}");
        thread::sleep(PAUSE / 2);
        Ok(())
    }
}

fn is_time_out(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The backend says whom it sees, and then echoes.
fn greeted(from: SocketAddr, to: SocketAddr) -> anyhow::Result<TcpStream> {
    greeting(client::connect_from(from, to)?)
}

fn greeting(mut stream: TcpStream) -> anyhow::Result<TcpStream> {
    let greeting = String::from_utf8(read_until(&mut stream, b"\r\n").context("greeting")?)?;
    let me = stream.local_addr()?.ip();
    ensure!(greeting.contains(&format!(" {me}:")), "{me} was greeted by {greeting:?}");
    Ok(stream)
}

fn stream(from: SocketAddr, to: SocketAddr, exchanges: usize) -> anyhow::Result<()> {
    let mut stream = greeted(from, to)?;
    let (mut pattern, mut sent, mut received) = (Pattern::default(), vec![0; CHUNK], vec![0; CHUNK]);
    let begun = Instant::now();
    for exchange in (0..exchanges).take_while(|_| begun.elapsed() < LONGEST) {
        pattern.fill(&mut sent);
        stream.write_all(&sent).with_context(|| format!("exchange {exchange}: write"))?;
        stream.read_exact(&mut received).with_context(|| format!("exchange {exchange}: read"))?;
        ensure!(sent == received, "exchange {exchange}: wrong bytes");
        thread::sleep(PAUSE);
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut received).context("end")? == 0, "more than was sent");
    Ok(())
}

fn bulk(from: SocketAddr, to: SocketAddr) -> anyhow::Result<()> {
    let mut stream = client::connect_from(from, to)?;
    let me = stream.local_addr()?;
    stream.write_all(&client::v2(me, to)?)?;
    let mut stream = greeting(stream)?;
    let mut sender = stream.try_clone()?;
    let send = move || -> anyhow::Result<usize> {
        let (mut pattern, mut chunk, mut sent) = (Pattern::default(), vec![0; BULK_CHUNK], 0);
        let begun = Instant::now();
        while sent < BULK_BYTES && begun.elapsed() < LONGEST {
            pattern.fill(&mut chunk);
            sender.write_all(&chunk).with_context(|| format!("write behind {sent} bytes"))?;
            sent += chunk.len();
        }
        sender.shutdown(Shutdown::Write)?;
        Ok(sent)
    };
    let sending = thread::spawn(send);
    let (mut pattern, mut received) = (Pattern::default(), 0);
    let (mut chunk, mut right) = (vec![0; BULK_CHUNK], vec![0; BULK_CHUNK]);
    loop {
        let count = stream.read(&mut chunk).with_context(|| format!("{me}: read behind {received} bytes"))?;
        if count == 0 {
            break;
        }
        pattern.fill(&mut right[..count]);
        ensure!(chunk[..count] == right[..count], "wrong bytes behind {received}");
        received += count;
    }
    let sent = sending.join().map_err(|_| anyhow::anyhow!("the writing thread panicked"))??;
    ensure!(sent == received, "{received} of {sent} bytes");
    Ok(())
}

/// Some bytes are still on their way, both ways.
fn reset(from: SocketAddr, to: SocketAddr) -> anyhow::Result<()> {
    let mut stream = greeted(from, to)?;
    for _ in 0..5 {
        stream.write_all(&Pattern::bytes(CHUNK))?;
        stream.read_exact(&mut [0; CHUNK / 2])?;
        thread::sleep(PAUSE);
    }
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(())
}

fn half_close(from: SocketAddr, to: SocketAddr) -> anyhow::Result<()> {
    let mut stream = greeted(from, to)?;
    let sent = Pattern::bytes(2 * CHUNK);
    stream.write_all(&sent)?;
    stream.shutdown(Shutdown::Write)?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    ensure!(received == sent, "{} of {} bytes, or wrong ones", received.len(), sent.len());
    thread::sleep(PAUSE);
    Ok(())
}

fn ends_a_process(phase: &str) -> bool {
    phase.contains("upgrade") || phase.contains("restart")
}

#[derive(Debug, PartialEq, Eq)]
enum Got {
    Response,
    /// The connection has ended before the first byte of it.
    NoResponse,
}

fn get(stream: &mut TcpStream, me: IpAddr) -> anyhow::Result<Got> {
    let mut first = [0];
    let begun = stream.write_all(b"GET /file HTTP/1.1\r\nHost: site.test\r\n\r\n");
    match begun.and_then(|()| stream.read(&mut first)) {
        Ok(0) => return Ok(Got::NoResponse),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            return Ok(Got::NoResponse);
        }
        Err(error) => return Err(error).context("the first byte"),
    }
    let rest = read_until(stream, b"\r\n\r\n")?;
    let head = String::from_utf8([&first[..], &rest].concat())?.to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200 "), "{head}");
    ensure!(head.contains(&format!("\r\nx-client: {me}\r\n")), "{me} was served as another: {head}");
    ensure!(head.contains(&format!("\r\ncontent-length: {FILE_BYTES}\r\n")), "{head}");
    let mut body = vec![0; FILE_BYTES];
    stream.read_exact(&mut body).context("body")?;
    ensure!(body == Pattern::bytes(FILE_BYTES), "wrong bytes");
    Ok(Got::Response)
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(end) {
        stream.read_exact(&mut byte).with_context(|| String::from_utf8_lossy(&bytes).into_owned())?;
        bytes.push(byte[0]);
    }
    Ok(bytes)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
