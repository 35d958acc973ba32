//! Clients of all kinds, each with an address of its own. Everything that goes wrong is kept with the phase in which
//! it went wrong.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use anyhow::{Context, ensure};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::servers::dns;
use truepeer_testbed::{client, datagrams, wait_for};

use crate::stage::{CLIENTS, FILE_BYTES, Stage, address};

/// What a client does, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A session over HAProxy's TCP listener with this place, with this many rounds of data.
    Stream { place: usize, exchanges: usize },
    /// Requests on one connection, with this pause before each.
    Web { pause: Duration },
    /// A query from the same socket each time.
    Dns,
}

const KINDS: [Kind; CLIENTS as usize] = [
    Kind::Stream { place: 0, exchanges: 2 },
    Kind::Stream { place: 0, exchanges: 20 },
    Kind::Stream { place: 0, exchanges: 100 },
    Kind::Stream { place: 1, exchanges: 2 },
    Kind::Stream { place: 1, exchanges: 20 },
    Kind::Stream { place: 1, exchanges: 100 },
    Kind::Web { pause: Duration::from_millis(3) },
    Kind::Web { pause: Duration::from_millis(40) },
    Kind::Web { pause: Duration::from_millis(300) },
    Kind::Dns,
    Kind::Dns,
    Kind::Dns,
];

/// The bytes of one exchange. A session of 100 takes some seconds.
const CHUNK: usize = 20_000;
const PAUSE: Duration = Duration::from_millis(10);
const REQUESTS_EACH: usize = 25;

pub(crate) struct Load<'a> {
    stage: &'a Stage,
    is_over: AtomicBool,
    phase: Mutex<String>,
    failures: Mutex<Vec<String>>,
    /// The asker of each name.
    asked: Mutex<HashMap<String, IpAddr>>,
    /// How often each client has succeeded.
    done: [AtomicUsize; CLIENTS as usize],
}

impl<'a> Load<'a> {
    pub(crate) fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            is_over: AtomicBool::new(false),
            phase: Mutex::default(),
            failures: Mutex::default(),
            asked: Mutex::default(),
            done: Default::default(),
        }
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
        let phase = std::mem::replace(&mut *lock(&self.phase), name);
        outcome.with_context(|| format!("in {phase}; before: {before:?}, now: {:?}", self.done))
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// `seen`: the clients that Unbound saw.
    pub(crate) fn verdict(&self, seen: &HashMap<String, IpAddr>) -> anyhow::Result<()> {
        let failures = lock(&self.failures);
        let drops = self.stage.drops()?;
        ensure!(
            failures.is_empty(),
            "{} failures (drops at full sockets: {drops}; successes: {:?}):\n{}",
            failures.len(),
            self.done,
            failures.join("\n")
        );
        for (name, asker) in &*lock(&self.asked) {
            ensure!(
                seen.get(name) == Some(asker),
                "{asker} asked for {name}, Unbound saw {:?}",
                seen.get(name)
            );
        }
        Ok(())
    }

    fn fail(&self, failure: String) {
        let failure = format!("{}: {failure}", lock(&self.phase));
        lock(&self.failures).push(failure);
    }

    fn run(&self, number: u8, kind: Kind) -> anyhow::Result<()> {
        let from = SocketAddr::new(address(number), 0);
        let socket = datagrams::socket(from)?;
        socket.connect(self.stage.dns())?;
        for turn in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let outcome = match kind {
                Kind::Stream { place, exchanges } => stream(from, self.stage.streams()[place], exchanges),
                Kind::Web { pause } => self.web(from, pause, number),
                Kind::Dns => self.query(&socket, from.ip(), turn),
            };
            match outcome {
                Ok(()) => _ = self.done[usize::from(number)].fetch_add(1, Ordering::Relaxed),
                Err(failure) => self.fail(format!("{kind:?} from {from}: {failure:#}")),
            }
        }
        Ok(())
    }

    fn web(&self, from: SocketAddr, pause: Duration, number: u8) -> anyhow::Result<()> {
        let mut stream = client::connect_from(from, self.stage.web())?;
        for request in 0..REQUESTS_EACH {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            thread::sleep(pause);
            get(&mut stream, from.ip()).with_context(|| format!("request {request}"))?;
            self.done[usize::from(number)].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn query(&self, socket: &UdpSocket, from: IpAddr, turn: u16) -> anyhow::Result<()> {
        let name = format!("q{turn}-{}.test", from.to_string().replace('.', "-"));
        lock(&self.asked).insert(name.clone(), from);
        socket.send(&dns::query(turn, &name))?;
        let answer = datagrams::receive(socket).with_context(|| name)?;
        ensure!(dns::is_answer(&answer, turn), "{answer:?}");
        thread::sleep(PAUSE / 2);
        Ok(())
    }
}

/// The backend says whom it sees, and then echoes.
fn stream(from: SocketAddr, to: SocketAddr, exchanges: usize) -> anyhow::Result<()> {
    let mut stream = client::connect_from(from, to)?;
    let greeting = String::from_utf8(read_until(&mut stream, b"\r\n").context("greeting")?)?;
    let me = stream.local_addr()?.ip();
    ensure!(greeting.contains(&format!(" {me}:")), "{me} was greeted by {greeting:?}");
    let (mut pattern, mut sent, mut received) = (Pattern::default(), vec![0; CHUNK], vec![0; CHUNK]);
    for exchange in 0..exchanges {
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

fn get(stream: &mut TcpStream, me: IpAddr) -> anyhow::Result<()> {
    stream.write_all(b"GET /file HTTP/1.1\r\nHost: site.test\r\n\r\n").context("write")?;
    let head = String::from_utf8(read_until(stream, b"\r\n\r\n")?)?.to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200 "), "{head}");
    ensure!(head.contains(&format!("\r\nx-client: {me}\r\n")), "{me} was served as another: {head}");
    ensure!(head.contains(&format!("\r\ncontent-length: {FILE_BYTES}\r\n")), "{head}");
    let mut body = vec![0; FILE_BYTES];
    stream.read_exact(&mut body).context("body")?;
    ensure!(body == Pattern::bytes(FILE_BYTES), "wrong bytes");
    Ok(())
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(end) {
        stream.read_exact(&mut byte).with_context(|| String::from_utf8_lossy(&bytes).into_owned())?;
        bytes.push(byte[0]);
    }
    Ok(bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
