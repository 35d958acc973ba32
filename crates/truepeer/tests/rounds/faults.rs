//! Faults beside the load, one after the other. Each has a rule: what it may cost its own sessions. It may
//! cost the load nothing, which the load itself notices.
//!
//! | fault | its own sessions |
//! |---|---|
//! | the backend is killed | end without an answer; the next one after its restart is served |
//! | senders stop within the header | end without an answer by `header-timeout` |
//! | wrong headers | end without an answer, and the backend sees none of them |
//! | senders reset | are not served; the backend sees no other client's name |
//! | datagrams without a header, and of many clients | no answer; each client gets its answer |

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::servers::dns;
use truepeer_testbed::{Bed, Behaviour, Running, client, datagrams};

use crate::load::Load;
use crate::stage::{CLIENTS, FAULTY_BACKEND, Stage, address};

/// Between two faults.
const PAUSE: Duration = Duration::from_millis(200);
const BYTES: usize = 50_000;
/// Sessions of each kind of fault.
const SESSIONS: usize = 4;
/// Clients that one sender names in its datagrams.
const ASKERS: u8 = 20;
/// The network of the clients that these senders name.
const NAMED: [u8; 3] = [198, 51, 100];
/// The client that only wrong and incomplete headers name.
const NOBODY: &str = "203.0.113.66:5000";

pub(crate) struct Faults<'a> {
    bed: &'a Bed,
    stage: &'a Stage,
    load: &'a Load<'a>,
    rounds: AtomicU64,
    sessions: AtomicU64,
}

impl<'a> Faults<'a> {
    pub(crate) fn new(bed: &'a Bed, stage: &'a Stage, load: &'a Load<'a>) -> Self {
        Self { bed, stage, load, rounds: AtomicU64::new(0), sessions: AtomicU64::new(0) }
    }

    /// How often each fault has happened.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Relaxed)
    }

    /// Causes them again and again until the load is over.
    pub(crate) fn run(&self) {
        let outcome = self.start_backend().and_then(|mut backend| {
            while !self.load.is_over() {
                backend = self.round(backend)?;
                self.rounds.fetch_add(1, Relaxed);
            }
            check_names(&backend)
        });
        if let Err(error) = outcome {
            self.load.fail(format!("faults: {error:#}"));
        }
    }

    fn round(&self, backend: Running) -> anyhow::Result<Running> {
        let on_client = |work: fn(&Self) -> anyhow::Result<()>, what: &'static str| {
            self.stage.client.run(|| work(self))?.context(what)?;
            self.stage.client.run(|| self.is_served())?.with_context(|| format!("after {what}"))?;
            thread::sleep(PAUSE);
            anyhow::Ok(())
        };
        on_client(Self::senders_stop, "senders that stop within the header")?;
        on_client(Self::wrong_headers, "wrong headers")?;
        on_client(Self::senders_reset, "senders that reset")?;
        on_client(Self::datagrams, "datagrams")?;
        let killed = self.stage.client.run(|| self.killed(&backend))?;
        killed.context("the backend is killed")?;
        check_names(&backend)?;
        let backend = self.start_backend()?;
        self.stage.client.run(|| self.is_served())?.context("after the backend's restart")?;
        thread::sleep(PAUSE);
        Ok(backend)
    }

    fn start_backend(&self) -> anyhow::Result<Running> {
        let netns = &self.stage.host.netns;
        Behaviour::Account.start_program(self.bed, &[FAULTY_BACKEND], |program| program.in_netns(netns))
    }

    fn is_served(&self) -> anyhow::Result<()> {
        let (client, mut stream) = self.session()?;
        let answer = client::ask(&mut stream, &Pattern::bytes(BYTES))?;
        let right = format!("{client} {}", Digest::of_pattern(BYTES as u64));
        ensure!(answer.trim() == right, "{client}: the backend saw {answer:?}");
        Ok(())
    }

    /// Sessions with a part of their data, and some that meet no backend.
    fn killed(&self, backend: &Running) -> anyhow::Result<()> {
        let mut streams = Vec::new();
        for _ in 0..SESSIONS {
            let (client, mut stream) = self.session()?;
            stream.write_all(&Pattern::bytes(BYTES))?;
            backend.wait_for_log(&format!("{client} accepted"))?;
            streams.push(stream);
        }
        backend.signal(Signal::KILL)?;
        backend.wait_end()?;
        for _ in 0..SESSIONS {
            streams.push(self.session()?.1);
        }
        streams.iter_mut().try_for_each(ends_unanswered)
    }

    fn senders_stop(&self) -> anyhow::Result<()> {
        let header = client::v2(NOBODY, self.stage.faulty())?;
        let mut streams = Vec::new();
        for stop in [0, 1, 12, 15, header.len() - 1] {
            let mut stream = self.connect()?;
            stream.write_all(&header[..stop])?;
            streams.push(stream);
        }
        streams.iter_mut().try_for_each(ends_unanswered)
    }

    fn wrong_headers(&self) -> anyhow::Result<()> {
        let v2 = client::v2(NOBODY, self.stage.faulty())?;
        let mut other_version = v2.clone();
        other_version[12] = 0x31;
        let too_short = client::v2_raw(0x21, 0x11, &[203, 0, 113, 66])?;
        let special = client::v2("127.0.0.1:5000", self.stage.faulty())?;
        let headers: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n",
            b"PROXY TCP4 203.0.113.300 203.0.113.1 5000 443\r\n",
            &[b"PROXY TCP4 203.0.113.66 ".as_slice(), &[b'1'; 200]].concat(),
            &other_version,
            &too_short,
            &special,
        ];
        for (number, header) in headers.into_iter().enumerate() {
            let mut stream = self.connect()?;
            // truepeer may have reset the connection before the second write.
            let _ = stream.write_all(header).and_then(|()| stream.write_all(b"data"));
            let _ = stream.shutdown(Shutdown::Write);
            ends_unanswered(&mut stream).with_context(|| format!("header {number}"))?;
        }
        Ok(())
    }

    /// Within the header, behind it, and within the data.
    fn senders_reset(&self) -> anyhow::Result<()> {
        for bytes in [0, BYTES] {
            let (_, mut stream) = self.session()?;
            stream.write_all(&Pattern::bytes(bytes))?;
            client::reset(stream)?;
        }
        let mut stream = self.connect()?;
        stream.write_all(&client::v2(NOBODY, self.stage.faulty())?[..20])?;
        client::reset(stream)?;
        Ok(())
    }

    fn datagrams(&self) -> anyhow::Result<()> {
        let socket = datagrams::socket(SocketAddr::new(me(), 0))?;
        socket.connect(self.stage.datagram_listener())?;
        let wrong = client::v2_raw(0x31, 0x12, &[0; 12])?;
        let no_headers: [&[u8]; 3] = [b"no header", &wrong, &[]];
        for datagram in no_headers {
            socket.send(datagram)?;
        }
        (1..=ASKERS).try_for_each(|asker| self.query(&socket, asker))
    }

    /// The answer comes to the sender. An answer to something else fails.
    fn query(&self, socket: &UdpSocket, asker: u8) -> anyhow::Result<()> {
        let number = self.sessions.fetch_add(1, Relaxed);
        let id = u16::try_from(number % (1 << 16))?;
        let [a, b, c] = NAMED;
        let client = SocketAddr::from(([a, b, c, asker], port_of(number)?));
        let name = format!("f{number}.test");
        self.load.expect_question(&name, client.ip());
        let header = datagrams::v2(client, self.stage.datagram_listener())?;
        datagrams::send(socket, &[&header, &dns::query(id, &name)])?;
        let answer = datagrams::receive(socket).with_context(|| format!("the answer to {client}"))?;
        ensure!(dns::is_answer(&answer, id), "{client} got {answer:?}");
        Ok(())
    }

    /// A session whose header is sent: its client, and the sender's connection.
    fn session(&self) -> anyhow::Result<(SocketAddr, TcpStream)> {
        let number = self.sessions.fetch_add(1, Relaxed);
        let [a, b, c] = NAMED;
        let last = u8::try_from(1 + number % 250)?;
        let client = SocketAddr::from(([a, b, c, last], port_of(number)?));
        let mut stream = self.connect()?;
        stream.write_all(&client::v2(client, self.stage.faulty())?)?;
        Ok((client, stream))
    }

    fn connect(&self) -> anyhow::Result<TcpStream> {
        client::connect_from(SocketAddr::new(me(), 0), self.stage.faulty())
    }
}

fn me() -> IpAddr {
    address(CLIENTS)
}

/// No port is used again while a connection from it may be in TIME-WAIT.
fn port_of(number: u64) -> anyhow::Result<u16> {
    Ok(u16::try_from(1024 + number % 60_000)?)
}

/// By an end or a reset, without a byte before.
fn ends_unanswered(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => Ok(()),
        Ok(_) => anyhow::bail!("it was answered"),
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset) => Ok(()),
        Err(error) => Err(error).context("it did not end"),
    }
}

/// A backend sees only the clients that were named in whole, right headers.
fn check_names(backend: &Running) -> anyhow::Result<()> {
    let [a, b, c] = NAMED;
    let (named, log) = (format!("{a}.{b}.{c}."), backend.stdout());
    let other = log.lines().find(|line| !line.starts_with(&named));
    ensure!(other.is_none(), "the backend saw another client: {other:?}");
    Ok(())
}
