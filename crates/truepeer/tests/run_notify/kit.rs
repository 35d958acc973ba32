//! Starts programs under truepeer, and asks them which client they see.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use truepeer_testbed::crowd::{in_parallel, nth_client};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Program, Running, User, client};

pub(crate) const V4: &str = "127.0.0.1:8080";
pub(crate) const V6: &str = "[::1]:8080";
pub(crate) const CLIENT4: &str = "203.0.113.7:5000";
pub(crate) const CLIENT6: &str = "[2001:db8::7]:5000";
/// The machine's own, which every user may run.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// The mechanism that this test binary tests.
static VIA: OnceLock<&str> = OnceLock::new();

/// Call it first in `main`.
pub(crate) fn choose(mechanism: &'static str) {
    VIA.get_or_init(|| mechanism);
}

pub(crate) fn via() -> &'static str {
    VIA.get().copied().unwrap_or("auto")
}

/// The program, run by truepeer with these options.
pub(crate) fn under(program: Program, options: &[&str]) -> Program {
    under_by(via(), program, options)
}

/// Under this mechanism, whichever the test binary tests.
pub(crate) fn under_by(mechanism: &str, program: Program, options: &[&str]) -> Program {
    let launch = [&["run", "--via", mechanism], options, &["--"]].concat();
    program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch)
}

/// A Python script under truepeer, both run by a user without privileges.
pub(crate) fn python(bed: &Bed, script: &str, options: &[&str]) -> anyhow::Result<Program> {
    let file = bed.write("script.py", script)?;
    Ok(under(Program::new(PYTHON).arg("-u").arg(file).as_user(User::TESTER), options))
}

/// Starts it and waits for what it listens on.
pub(crate) fn start(bed: &Bed, program: &Program, addresses: &[&str]) -> anyhow::Result<Running> {
    let running = program.start(bed)?;
    addresses.iter().try_for_each(|address| running.wait_listening(address))?;
    Ok(running)
}

/// Starts it with `--destination header` on these ports.
pub(crate) fn with_destinations(
    bed: &Bed,
    program: Program,
    ports: &str,
    addresses: &[&str],
) -> anyhow::Result<Running> {
    start(bed, &under(program, &["--destination", "header", "--port", ports]), addresses)
}

pub(crate) fn header_of(client: &str) -> anyhow::Result<Vec<u8>> {
    client::v2(client, destination_for(client))
}

pub(crate) fn destination_for(client: &str) -> &'static str {
    if client.starts_with('[') { "[2001:db8::1]:443" } else { "192.0.2.1:443" }
}

/// The supervisor, and the program that it has started. The process that the test has started is its guard.
/// With preload truepeer becomes the program: then all are the same process.
pub(crate) fn supervisor_and_program(running: &Running) -> [i32; 2] {
    let supervisor = child_of(running.pid()).unwrap_or(running.pid());
    [supervisor, child_of(supervisor).unwrap_or(supervisor)]
}

/// A process's first child.
fn child_of(pid: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// With `--verbose`. The words are the library's, and the supervisor's.
pub(crate) fn wait_until_served_without_header(running: &Running) -> anyhow::Result<()> {
    running.wait_state("a client to be served without a header", || {
        let log = running.log();
        log.contains("for itself") || log.contains("the sender is the client")
    })
}

/// How to ask a program for the client that it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Talk {
    /// It reads to the end, then answers.
    Plain,
    /// It answers a request.
    Http,
    /// It answers a command.
    Redis,
    /// It answers a query, in a separate process.
    Postgres,
}

/// Without waiting for its messages in between: a startup packet (version 3.0), a simple query, and the end.
const POSTGRES: &[u8] = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0\
    Q\0\0\0\x58select 'addr=' || host(inet_client_addr()) || ':' || inet_client_port() || ' '     \0\
    X\0\0\0\x04";

impl Talk {
    pub(crate) fn question(self) -> &'static [u8] {
        match self {
            Talk::Plain => b"hello",
            Talk::Http => b"GET / HTTP/1.0\r\n\r\n",
            Talk::Redis => b"CLIENT INFO\r\nQUIT\r\n",
            Talk::Postgres => POSTGRES,
        }
    }

    /// Writes the pieces, each after the previous one has arrived, and returns the address in the answer.
    pub(crate) fn ask(self, to: &str, pieces: &[&[u8]]) -> anyhow::Result<SocketAddr> {
        let mut stream = client::connect(to)?;
        for (n, piece) in pieces.iter().enumerate() {
            if n > 0 {
                wait_until_sent(&stream)?;
            }
            stream.write_all(piece)?;
        }
        self.hear(stream)
    }

    /// Writes the pieces one after another; they may arrive together. With thousands of connections, waiting
    /// for each arrival would take too long.
    pub(crate) fn ask_fast(self, to: &str, pieces: &[&[u8]]) -> anyhow::Result<SocketAddr> {
        let mut stream = client::connect(to)?;
        pieces.iter().try_for_each(|piece| stream.write_all(piece))?;
        self.hear(stream)
    }

    /// On a connection whose header has been written.
    pub(crate) fn say_and_hear(self, mut stream: TcpStream) -> anyhow::Result<SocketAddr> {
        stream.write_all(self.question())?;
        self.hear(stream)
    }

    fn hear(self, mut stream: TcpStream) -> anyhow::Result<SocketAddr> {
        if self == Talk::Plain {
            stream.shutdown(Shutdown::Write)?;
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("the answer")?;
        let answer = String::from_utf8_lossy(&answer);
        self.read(&answer).with_context(|| format!("no address: {answer:?}"))
    }

    /// `ip port`, `ip:port` (IPv6 without brackets, too) or Redis' `… addr=ip:port …`.
    pub(crate) fn read(self, answer: &str) -> Option<SocketAddr> {
        let line = match self {
            Talk::Redis | Talk::Postgres => answer.split("addr=").nth(1)?.split(' ').next()?,
            _ => answer.trim().lines().last()?,
        };
        let (ip, port) = line.rsplit_once([' ', ':'])?;
        let ip: std::net::IpAddr = ip.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(ip.to_canonical(), port.parse().ok()?))
    }
}

/// v1, v2, v2 with 1 KiB of TLVs, LOCAL and none, each whole, split, and alone before the data; for these
/// clients.
pub(crate) fn every_form_names_the_client(to: &[&str], clients: &[&str], talk: Talk) -> anyhow::Result<()> {
    for to in to {
        for named in clients {
            let destination = destination_for(named);
            let headers = [
                client::v1(named, destination)?,
                client::v2(named, destination)?,
                client::v2_with_tlvs(named, destination, &[(4, &[0; 1024])])?,
            ];
            for header in &headers {
                for pieces in arrivals(header, talk.question()) {
                    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
                    let saw = talk.ask(to, &pieces).with_context(|| in_pieces(named, &pieces))?;
                    ensure!(saw.to_string() == *named, "{saw} was seen: {}", in_pieces(named, &pieces));
                }
            }
        }
        for pieces in arrivals(&client::v2_local(), talk.question()) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let saw = talk.ask(to, &pieces).context("LOCAL")?;
            ensure!(saw.ip().is_loopback(), "LOCAL was seen as {saw}");
        }
        let mut none = client::connect(to)?;
        none.write_all(talk.question())?;
        client::read_end(&mut none).context("a connection without a header has to end")?;
    }
    Ok(())
}

/// One after another, and fifty at a time; each must be named correctly.
pub(crate) fn each_of_a_crowd_is_named(to: &str, talk: Talk) -> anyhow::Result<()> {
    for side_by_side in [1, 50] {
        in_parallel(side_by_side, 1000, |n| {
            let client = nth_client(n);
            let opening = [&header_of(&client.to_string())?, talk.question()].concat();
            let saw = talk.ask_fast(to, &[&opening])?;
            ensure!(saw == client, "{client} was seen as {saw}, {side_by_side} at a time");
            Ok(())
        })?;
    }
    Ok(())
}

fn in_pieces(client: &str, pieces: &[&[u8]]) -> String {
    let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
    format!("{client} in pieces of {lengths:?}")
}

/// Whole, split within the header, and the header alone.
pub(crate) fn arrivals(header: &[u8], question: &[u8]) -> [Vec<Vec<u8>>; 3] {
    let (first, second) = header.split_at(header.len() / 2);
    [
        vec![[header, question].concat()],
        vec![first.to_vec(), [second, question].concat()],
        vec![header.to_vec(), question.to_vec()],
    ]
}
