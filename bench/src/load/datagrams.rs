//! Datagrams: many flows, each with several datagrams in flight, each with its own header (the
//! specification's dialect), echoed.

use std::io::IoSlice;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use truepeer_sys::udp::{Arrival, ReceiveBatch, Run, grow_buffers, send_runs, udp_socket};

use super::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use super::flows::Account;
use crate::clients::{Clients, v2_header};
use crate::contestant::Stand;
use crate::link::{Events, Poll};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::suites::Scale;

/// How many datagrams are sent or received in one call; also the most that a flow may have in flight.
const BATCH: usize = 32;
/// Large enough that the load doesn't lose datagrams.
const BUFFER_BYTES: usize = 4 << 20;
/// How often to look for silent flows.
const ROUND: Duration = Duration::from_millis(20);
/// How long to wait for the last datagrams.
const LAST_ONES: Duration = Duration::from_millis(300);
/// A payload starts with the flow's number and its own.
const STAMP: usize = 16;

struct Flow {
    socket: OwnedFd,
    header: Vec<u8>,
    number: u64,
    account: Account,
}

/// A thread's report.
#[derive(Debug, Default)]
pub(super) struct Report {
    sent: u64,
    missing: u64,
    wrong: u64,
    unexpected: u64,
}

struct Shooter {
    flows: Vec<Flow>,
    in_flight: usize,
    /// The payloads being sent: as many as fit into a batch.
    payloads: Vec<Vec<u8>>,
    received: ReceiveBatch,
    report: Report,
}

pub(super) fn run(stand: &Stand, scale: &Scale, bytes: usize) -> anyhow::Result<Sample> {
    let mut shooters: Vec<Shooter> =
        (0..scale.threads).map(|_| Shooter::new(scale.in_flight.min(BATCH), bytes)).collect();
    let mut clients = Clients::share(stand.at.entrance, 0, 1);
    for number in 0..scale.connections {
        let flow = Flow::open(number as u64, stand, &mut clients)?;
        shooters[number % scale.threads].flows.push(flow);
    }
    let measured = conduct(shooters, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Echoed, measured.per_second(measured.counts.done));
    let sum = |of: fn(&Report) -> u64| measured.reports.iter().map(of).sum::<u64>();
    sample.put(Metric::Loss, 100.0 * sum(|report| report.missing) as f64 / sum(|report| report.sent) as f64);
    latency::put_cpu(&mut sample, measured.cpu, measured.counts.done);
    let (wrong, unexpected) = (sum(|report| report.wrong), sum(|report| report.unexpected));
    if wrong > 0 {
        sample.flaw(format!("{wrong} datagrams with wrong bytes or of another flow"));
    }
    if unexpected > 0 {
        sample.flaw(format!("{unexpected} datagrams that came twice or much too late"));
    }
    Ok(sample)
}

impl Flow {
    fn open(number: u64, stand: &Stand, clients: &mut Clients) -> anyhow::Result<Self> {
        let (client, sender) = clients.take();
        let header = if stand.header { v2_header(client, stand.at.entrance)? } else { Vec::new() };
        let socket = udp_socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        grow_buffers(socket.as_fd(), BUFFER_BYTES);
        rustix::net::bind(&socket, &SocketAddr::from((sender, 0))).context("bind")?;
        rustix::net::connect(&socket, &stand.at.entrance).context("connect")?;
        Ok(Self { socket, header, number, account: Account::new(Instant::now()) })
    }

    /// Sends as many as may be in flight.
    fn fill(&mut self, in_flight: usize, payloads: &mut [Vec<u8>]) {
        let room = in_flight.saturating_sub(self.account.under_way()).min(payloads.len());
        if room == 0 {
            return;
        }
        let mut numbers = [0; BATCH];
        for (payload, number) in payloads[..room].iter_mut().zip(&mut numbers) {
            *number = self.account.send();
            payload[..8].copy_from_slice(&self.number.to_le_bytes());
            payload[8..STAMP].copy_from_slice(&number.to_le_bytes());
        }
        let sent = self.send(&payloads[..room]);
        for &number in &numbers[sent..room] {
            self.account.drop_unsent(number);
        }
    }

    fn send(&self, payloads: &[Vec<u8>]) -> usize {
        let parts: Vec<[IoSlice<'_>; 2]> =
            payloads.iter().map(|payload| [IoSlice::new(&self.header), IoSlice::new(payload)]).collect();
        let runs: Vec<Run<'_>> = parts.iter().map(|parts| Run { parts, segment_bytes: None }).collect();
        let (mut sent, mut tries) = (0, 0);
        while sent < runs.len() && tries < runs.len() {
            tries += 1;
            // A datagram that can't be sent (no room, or an error of an earlier one: nothing listens) counts
            // as lost.
            sent += send_runs(self.socket.as_fd(), None, None, &runs[sent..]).unwrap_or(0);
        }
        sent
    }
}

impl Shooter {
    fn new(in_flight: usize, bytes: usize) -> Self {
        let payload: Vec<u8> = (0..bytes).map(|place| u8::try_from(place % 251).unwrap_or(0)).collect();
        Self {
            flows: Vec::new(),
            in_flight,
            payloads: vec![payload; BATCH],
            received: ReceiveBatch::with_room_for(BATCH),
            report: Report::default(),
        }
    }

    /// Receives a flow's datagrams.
    fn receive(&mut self, number: usize, now: Instant, counters: &Counters) {
        let Some(flow) = self.flows.get_mut(number) else { return };
        match self.received.receive(flow.socket.as_fd()) {
            Ok(_) => {}
            // ECONNREFUSED: the error of an earlier datagram, which will be missing.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED) => return,
            Err(_) => {
                self.report.unexpected += 1;
                return;
            }
        }
        let mut echoed = 0;
        for arrival in self.received.arrivals() {
            match read_stamp(&arrival, flow.number, &self.payloads[0]) {
                None => self.report.wrong += 1,
                Some(number) if flow.account.receive(number, now) => echoed += 1,
                Some(_) => self.report.unexpected += 1,
            }
        }
        counters.did(echoed);
    }

    fn fill_all(&mut self) {
        for flow in &mut self.flows {
            flow.fill(self.in_flight, &mut self.payloads);
        }
    }

    fn expire(&mut self, now: Instant) {
        self.flows.iter_mut().for_each(|flow| flow.account.expire(now));
    }

    fn finish(mut self) -> Report {
        for flow in &self.flows {
            self.report.sent += flow.account.sent();
            self.report.missing += flow.account.missing();
        }
        self.report
    }
}

/// The number of a datagram of this flow, if it is complete and unchanged.
fn read_stamp(arrival: &Arrival<'_>, flow: u64, payload: &[u8]) -> Option<u64> {
    let (stamp, rest) = arrival.bytes.split_at_checked(STAMP)?;
    let (own, number) = stamp.split_at(8);
    (own == flow.to_le_bytes() && rest == &payload[STAMP..])
        .then(|| number.try_into().map(u64::from_le_bytes).ok())?
}

impl LoadWorker for Shooter {
    type Report = Report;

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        for (number, flow) in self.flows.iter().enumerate() {
            poll.add(&flow.socket, number, EventFlags::IN)?;
        }
        self.fill_all();
        let (mut looked, mut going_home) = (Instant::now(), None);
        loop {
            poll.wait(&mut events, GLANCE)?;
            let (now, stage) = (Instant::now(), cue.stage());
            let shooting = matches!(stage, Stage::WarmUp | Stage::Window);
            for (number, _) in events.iter() {
                self.receive(number, now, counters);
                if shooting {
                    self.flows[number].fill(self.in_flight, &mut self.payloads);
                }
            }
            if shooting && now.duration_since(looked) >= ROUND {
                looked = now;
                self.expire(now);
                self.fill_all();
            }
            if !shooting {
                let since = *going_home.get_or_insert(now);
                let all_home = self.flows.iter().all(|flow| flow.account.under_way() == 0);
                if all_home || now.duration_since(since) >= LAST_ONES {
                    return Ok(self.finish());
                }
            }
        }
    }
}
