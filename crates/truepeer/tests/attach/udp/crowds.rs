//! More clients than ports, seats or table entries.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_testbed::datagrams::{spp, v2};
use truepeer_testbed::{Bed, Test, tests};

use super::{DESTINATIONS, Pair};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        more_clients_than_ports_are_answered_through_a_mapped_port,
        more_clients_than_ports_are_answered_in_spp,
        no_answer_goes_to_another_client_while_flows_are_forgotten,
        a_port_that_is_mapped_later_is_answered,
    ];
    let million = tests![
        a_million_clients_of_one_sender_are_answered_through_a_mapped_port,
        a_million_clients_of_one_sender_are_answered_in_spp,
    ];
    all.extend(million.into_iter().map(|test| test.long().time_limit(Duration::from_secs(600))));
    all.push(
        Test::new("answers_lost_on_their_way_use_nothing_up", answers_lost_on_their_way_use_nothing_up)
            .long()
            .time_limit(Duration::from_secs(180)),
    );
    all
}

/// More than there are ports, and more than the default of `--max-udp-flows`.
const MANY: u32 = 150_000;
const MILLION: u32 = 1_000_000;

fn more_clients_than_ports_are_answered_through_a_mapped_port(bed: &Bed) -> Result<()> {
    all_are_answered(bed, MAPPED, MANY, &[])
}

fn more_clients_than_ports_are_answered_in_spp(bed: &Bed) -> Result<()> {
    all_are_answered(bed, SPP, MANY, &[])
}

fn a_million_clients_of_one_sender_are_answered_through_a_mapped_port(bed: &Bed) -> Result<()> {
    all_are_answered(bed, MAPPED, MILLION, &["--max-udp-flows", "1100000"])
}

fn a_million_clients_of_one_sender_are_answered_in_spp(bed: &Bed) -> Result<()> {
    all_are_answered(bed, SPP, MILLION, &["--max-udp-flows", "1100000"])
}

/// Only mapped ports need the table of seats.
fn a_port_that_is_mapped_later_is_answered(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    let _servers = [Server::start(&pair, 54)?, Server::start(&pair, MAPPED.bound)?];
    let sender = pair.sender(false, 53)?;
    pair.attach(bed, &["--port", "54/udp"])?;
    pair.attach(bed, &["--port", "54/udp", "--port", MAPPED.port])?;
    ask_all(&sender, MAPPED, 0..1000)?;
    // Another size, while clients are known.
    pair.attach(bed, &["--port", MAPPED.port, "--max-udp-flows", "20000", "--replace"])?;
    ask_all(&sender, MAPPED, 0..9000)
}

/// The form and the destination of a sender's datagrams.
#[derive(Debug, Clone, Copy)]
struct Way {
    port: &'static str,
    dialect: &'static str,
    bound: u16,
}

const MAPPED: Way = Way { port: "53:5353/udp", dialect: "every", bound: 5353 };
const SPP: Way = Way { port: "53/udp", dialect: "spp", bound: 53 };

/// All clients are behind one socket of the sender. Each answer is compared, those to known clients
/// repeatedly.
fn all_are_answered(bed: &Bed, way: Way, count: u32, options: &[&str]) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &[&["--port", way.port, "--udp-dialect", way.dialect], options].concat())?;
    let _server = Server::start(&pair, way.bound)?;
    let sender = pair.sender(false, 53)?;
    let known = 20_000_000..20_000_040;
    ask_all(&sender, way, known.clone()).context("before")?;
    let step = count / 20;
    for n in 0..20 {
        ask_all(&sender, way, n * step..(n + 1) * step)
            .with_context(|| format!("clients from {}", n * step))?;
        ask_all(&sender, way, known.clone()).with_context(|| format!("known clients after {}", n * step))?;
    }
    ask_all(&sender, way, 30_000_000..30_000_040).context("after")?;
    let answers = u64::from(20 * step + 21 * 40 + 40);
    ensure!(pair.counter(bed, "answers")? == answers, "{}", pair.status(bed)?);
    ensure!(pair.counter(bed, "answers_refused")? == 0, "{}", pair.status(bed)?);
    Ok(())
}

/// There is room for only a few flows, two sockets of the sender, and two of the backend: many answers find
/// their flow forgotten, or being rewritten for another client.
fn no_answer_goes_to_another_client_while_flows_are_forgotten(bed: &Bed) -> Result<()> {
    for way in [MAPPED, SPP] {
        let pair = Pair::new()?;
        let options = ["--port", way.port, "--udp-dialect", way.dialect, "--max-udp-flows", "1000"];
        pair.attach(bed, &options)?;
        let _servers = [Server::start(&pair, way.bound)?, Server::start(&pair, way.bound)?];
        let senders = [pair.sender(false, 53)?, pair.sender(false, 53)?];
        let answered: Result<Vec<usize>> = thread::scope(|scope| {
            let crowds = senders.iter().zip([0..40_000, 50_000..90_000]);
            let askers: Vec<_> = crowds
                .map(|(sender, clients)| scope.spawn(move || ask_whoever_answers(sender, way, clients)))
                .collect();
            askers
                .into_iter()
                .map(|asker| asker.join().unwrap_or_else(|_| anyhow::bail!("panicked")))
                .collect()
        });
        let answered = answered?.into_iter().sum::<usize>();
        ensure!(answered > 20_000, "{} {}: only {answered} of 80000 were answered", way.dialect, way.port);
    }
    Ok(())
}

/// A route leads nowhere for a while. Answers lost meanwhile must not use up seats.
fn answers_lost_on_their_way_use_nothing_up(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", MAPPED.port])?;
    let _server = Server::start(&pair, MAPPED.bound)?;
    let sender = pair.sender(false, 53)?;
    ask_all(&sender, MAPPED, 0..100)?;
    let lost = format!("{}/32", pair.lb().v4);
    pair.host().ip(&[&format!("route add blackhole {lost}")])?;
    for client in 1000..80_000 {
        sender.send(&[&MAPPED.header(client)?, b"?".as_slice()].concat())?;
        if client % 64 == 0 {
            thread::sleep(Duration::from_micros(500)); // the backend's queue is short
        }
    }
    pair.host().ip(&[&format!("route del blackhole {lost}")])?;
    thread::sleep(Duration::from_secs(22)); // LOST_S
    ask_all(&sender, MAPPED, 100_000..140_000)?;
    Ok(())
}

impl Way {
    fn header(self, client: u32) -> Result<Vec<u8>> {
        let name = name(client);
        if self.dialect == "spp" { spp(name, DESTINATIONS[0]) } else { v2(name, DESTINATIONS[0]) }
    }

    /// The backend's answer to a datagram of at most `?`, as the sender receives it.
    fn answer(self, client: u32) -> Result<Vec<u8>> {
        let back = if self.dialect == "spp" { self.header(client)? } else { Vec::new() };
        Ok([&back, name(client).as_bytes(), b" ?"].concat())
    }
}

fn name(client: u32) -> String {
    format!("{}:{}", Ipv4Addr::from(0x0b00_0000 + client), 1024 + client % 7)
}

/// As many datagrams as fit in a socket's queue.
const BATCH: usize = 64;

fn ask_all(sender: &UdpSocket, way: Way, clients: Range<u32>) -> Result<()> {
    let clients: Vec<u32> = clients.collect();
    let mut buffer = [0; 200];
    for batch in clients.chunks(BATCH) {
        let mut expected = HashSet::new();
        for client in batch {
            sender.send(&[&way.header(*client)?, b"?".as_slice()].concat())?;
            expected.insert(way.answer(*client)?);
        }
        while !expected.is_empty() {
            let len = sender
                .recv(&mut buffer)
                .with_context(|| format!("{} of {} unanswered", expected.len(), batch.len()))?;
            ensure!(expected.remove(&buffer[..len]), "another's answer: {}", buffer[..len].escape_ascii());
        }
    }
    Ok(())
}

/// Returns how many clients are answered. An answer for a client of another socket is an error.
fn ask_whoever_answers(sender: &UdpSocket, way: Way, clients: Range<u32>) -> Result<usize> {
    let clients: Vec<u32> = clients.collect();
    let mut buffer = [0; 200];
    let mut answered = 0;
    let mut expected = HashSet::new();
    sender.set_read_timeout(Some(Duration::from_millis(20)))?;
    for batch in clients.chunks(BATCH) {
        for client in batch {
            sender.send(&[&way.header(*client)?, b"?".as_slice()].concat())?;
            expected.insert(way.answer(*client)?);
        }
        let wanted = answered + batch.len();
        while answered < wanted {
            match sender.recv(&mut buffer) {
                Ok(len) => {
                    ensure!(
                        expected.remove(&buffer[..len]),
                        "another's answer: {}",
                        buffer[..len].escape_ascii()
                    );
                    answered += 1;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(answered)
}

/// An unmodified server that returns the client that it sees, one of several on its port. It stores nothing.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(pair: &Pair, port: u16) -> Result<Server> {
        let socket = pair.host().run(|| -> Result<UdpSocket> {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
            socket.set_reuse_port(true)?;
            socket.bind(&SockAddr::from(std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))?;
            Ok(socket.into())
        })??;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 200];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    let answer = [from.to_string().as_bytes(), b" ", &buffer[..len]].concat();
                    // The receiver of the answer checks the result.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
