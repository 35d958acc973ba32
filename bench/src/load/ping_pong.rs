//! 64 bytes and 64 bytes back, one request at a time on each connection.

use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use crate::clients::{Clients, v1_header};
use crate::contestant::Stand;
use crate::link::{self, Events, Poll};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::suites::Scale;

/// The size of a request and of its answer.
const MESSAGE: usize = 64;

struct Connection {
    socket: OwnedFd,
    request: [u8; MESSAGE],
    answer: [u8; MESSAGE],
    /// The received bytes of the answer.
    filled: usize,
    asked: Instant,
    number: u64,
    /// Whether a request is in flight.
    busy: bool,
}

/// A thread's faults.
#[derive(Debug, Default)]
pub(super) struct PingPongFaults {
    wrong: u64,
    cut: u64,
    unanswered: u64,
}

struct PingPong {
    connections: Vec<Connection>,
    latencies: Histogram<u64>,
    faults: PingPongFaults,
    /// The number of connections with a request in flight.
    busy: usize,
}

pub(super) fn run(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let mut workers = (0..scale.threads).map(|_| PingPong::new()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut clients = Clients::share(0, 1);
    for number in 0..scale.connections {
        let (client, sender) = clients.take();
        let header = if stand.header { v1_header(client, stand.entrance)? } else { Vec::new() };
        let socket = link::connect(sender, stand.entrance, &header)?;
        socket.set_nonblocking(true)?;
        workers[number % scale.threads].connections.push(Connection::new(socket.into(), number));
    }
    let measured = conduct(workers, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Transactions, measured.per_second(measured.counts.done));
    latency::put(&mut sample, measured.reports.iter().map(|(latencies, _)| latencies))?;
    latency::put_cpu(&mut sample, measured.cpu, measured.counts.done);
    let sum =
        |of: fn(&PingPongFaults) -> u64| measured.reports.iter().map(|(_, faults)| of(faults)).sum::<u64>();
    for (count, what) in [
        (sum(|faults| faults.wrong), "wrong answers"),
        (sum(|faults| faults.cut), "connections cut off"),
        (sum(|faults| faults.unanswered), "requests never answered"),
    ] {
        if count > 0 {
            sample.flaw(format!("{count} {what}"));
        }
    }
    Ok(sample)
}

impl Connection {
    fn new(socket: OwnedFd, number: usize) -> Self {
        let mut request = [0; MESSAGE];
        for (byte, value) in request.iter_mut().zip(0u8..) {
            *byte = value;
        }
        request[8..16].copy_from_slice(&(number as u64).to_le_bytes());
        Self {
            socket,
            request,
            answer: [0; MESSAGE],
            filled: 0,
            asked: Instant::now(),
            number: 0,
            busy: false,
        }
    }

    fn ask(&mut self) -> Result<(), Errno> {
        self.number += 1;
        self.request[..8].copy_from_slice(&self.number.to_le_bytes());
        self.filled = 0;
        self.busy = true;
        self.asked = Instant::now();
        // All or nothing: at most 64 bytes are in flight.
        rustix::io::write(&self.socket, &self.request).map(|_| ())
    }

    /// Whether the answer is complete.
    fn listen(&mut self) -> Result<bool, Errno> {
        match rustix::io::read(&self.socket, &mut self.answer[self.filled..]) {
            Ok(0) => Err(Errno::CONNRESET),
            Ok(read) => {
                self.filled += read;
                Ok(self.filled == MESSAGE)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl PingPong {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            connections: Vec::new(),
            latencies: latency::histogram()?,
            faults: PingPongFaults::default(),
            busy: 0,
        })
    }

    fn advance(&mut self, number: usize, stage: Stage, counters: &Counters) -> Result<(), Errno> {
        let connection = &mut self.connections[number];
        if !connection.listen()? {
            return Ok(());
        }
        self.faults.wrong += u64::from(connection.answer != connection.request);
        counters.did(1);
        if stage == Stage::Window {
            latency::record(&mut self.latencies, connection.asked.elapsed());
        }
        if stage == Stage::WarmUp || stage == Stage::Window {
            return connection.ask();
        }
        connection.busy = false;
        self.busy -= 1;
        Ok(())
    }

    /// A connection that has ended sends no more requests.
    fn give_up(&mut self, number: usize, poll: &Poll) -> anyhow::Result<()> {
        let connection = &mut self.connections[number];
        poll.forget(&connection.socket)?;
        self.faults.cut += 1;
        self.busy -= usize::from(connection.busy);
        connection.busy = false;
        Ok(())
    }
}

impl LoadWorker for PingPong {
    type Report = (Histogram<u64>, PingPongFaults);

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        for (number, connection) in self.connections.iter_mut().enumerate() {
            poll.add(&connection.socket, number, EventFlags::IN)?;
            connection.ask().context("the first request")?;
            self.busy += 1;
        }
        while self.busy > 0 && cue.stage() != Stage::Over {
            poll.wait(&mut events, GLANCE)?;
            let stage = cue.stage();
            for (number, _) in events.iter() {
                if self.advance(number, stage, counters).is_err() {
                    self.give_up(number, &poll)?;
                }
            }
        }
        self.faults.unanswered = self.busy as u64;
        Ok((self.latencies, self.faults))
    }
}
