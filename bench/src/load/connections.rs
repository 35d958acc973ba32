//! Connections for one byte: connect, header and byte in one write, the byte back, close. The load closes
//! first, so TIME_WAIT stays with the load and with the contestant's upstream side, never with the backend.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use crate::clients::{Clients, v1_header};
use crate::contestant::Stand;
use crate::link::{Events, Poll, socket_from};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::place;
use crate::suites::Scale;

/// The byte that is echoed.
const BYTE: u8 = b'!';

/// One connection after another.
struct Slot {
    socket: OwnedFd,
    /// Header and byte, until they are written.
    unsent: Vec<u8>,
    begun: Instant,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionFaults {
    refused: u64,
    cut: u64,
    wrong: u64,
    unanswered: u64,
}

struct Knocker<'a> {
    stand: &'a Stand<'a>,
    clients: Clients,
    slots: Vec<Option<Slot>>,
    busy: usize,
    latencies: Histogram<u64>,
    faults: ConnectionFaults,
}

pub(super) fn run(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let shares = scale.threads;
    let workers = (0..shares).map(|share| {
        let slots = (share..scale.connections).step_by(shares).count();
        Ok(Knocker {
            stand,
            clients: Clients::share(stand.at.entrance, share, shares),
            slots: (0..slots).map(|_| None).collect(),
            busy: 0,
            latencies: latency::histogram()?,
            faults: ConnectionFaults::default(),
        })
    });
    let measured = conduct(workers.collect::<anyhow::Result<Vec<_>>>()?, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Connections, measured.per_second(measured.counts.done));
    latency::put(&mut sample, measured.reports.iter().map(|(latencies, _)| latencies))?;
    latency::put_cpu(&mut sample, measured.cpu, measured.counts.done);
    let (waiting, cut_short) = place::time_wait();
    sample.put(Metric::TimeWait, waiting as f64);
    if cut_short > 0 {
        sample.flaw(format!("the kernel cut {cut_short} sockets in TIME_WAIT short"));
    }
    let sum =
        |of: fn(&ConnectionFaults) -> u64| measured.reports.iter().map(|(_, faults)| of(faults)).sum::<u64>();
    for (count, what) in [
        (sum(|faults| faults.refused), "connections refused"),
        (sum(|faults| faults.cut), "connections closed without an answer"),
        (sum(|faults| faults.wrong), "wrong answers"),
        (sum(|faults| faults.unanswered), "connections never answered"),
    ] {
        if count > 0 {
            sample.flaw(format!("{count} {what}"));
        }
    }
    Ok(sample)
}

impl Knocker<'_> {
    /// Starts the next connection of a slot. On loopback the handshake is over when connect() returns, so the
    /// bytes can usually be written at once.
    fn knock(&mut self, number: usize, poll: &Poll) -> anyhow::Result<()> {
        let (client, sender) = self.clients.take();
        let mut bytes =
            if self.stand.header { v1_header(client, self.stand.at.entrance)? } else { Vec::new() };
        bytes.push(BYTE);
        let socket = socket_from(sender)?;
        socket.set_nonblocking(true)?;
        let mut slot = Slot { socket: socket.into(), unsent: bytes, begun: Instant::now() };
        match rustix::net::connect(&slot.socket, &self.stand.at.entrance) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error).context("connect"),
        }
        let flags = match slot.send() {
            Ok(true) => EventFlags::IN,
            // Not connected yet (the backlog was full), or refused: an event will tell.
            Ok(false) | Err(_) => EventFlags::OUT,
        };
        poll.add(&slot.socket, number, flags)?;
        self.slots[number] = Some(slot);
        self.busy += 1;
        Ok(())
    }

    /// Continues a slot's connection. Returns whether it is over.
    fn advance(
        &mut self,
        number: usize,
        stage: Stage,
        poll: &Poll,
        counters: &Counters,
    ) -> anyhow::Result<bool> {
        let Some(Some(slot)) = self.slots.get_mut(number) else { return Ok(false) };
        if !slot.unsent.is_empty() {
            return match slot.send() {
                Ok(true) => poll.modify(&slot.socket, number, EventFlags::IN).map(|()| false),
                Ok(false) => Ok(false),
                Err(_) => {
                    self.faults.refused += 1;
                    Ok(true)
                }
            };
        }
        let mut answer = [0; 16];
        match rustix::io::read(&slot.socket, &mut answer) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Ok(0) | Err(_) => self.faults.cut += 1,
            Ok(1) if answer[0] == BYTE => {
                counters.did(1);
                if stage == Stage::Window {
                    latency::record(&mut self.latencies, slot.begun.elapsed());
                }
            }
            Ok(_) => self.faults.wrong += 1,
        }
        Ok(true)
    }
}

impl Slot {
    /// Whether everything is written.
    fn send(&mut self) -> Result<bool, Errno> {
        match rustix::io::write(self.socket.as_fd(), &self.unsent) {
            Ok(_) => {
                self.unsent.clear(); // an empty socket accepts so few bytes at once
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl LoadWorker for Knocker<'_> {
    type Report = (Histogram<u64>, ConnectionFaults);

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        for number in 0..self.slots.len() {
            self.knock(number, &poll)?;
        }
        while self.busy > 0 && cue.stage() != Stage::Over {
            poll.wait(&mut events, GLANCE)?;
            let stage = cue.stage();
            for (number, _) in events.iter() {
                if self.advance(number, stage, &poll, counters)? {
                    self.slots[number] = None; // closes
                    self.busy -= 1;
                    if stage == Stage::WarmUp || stage == Stage::Window {
                        self.knock(number, &poll)?;
                    }
                }
            }
        }
        self.faults.unanswered = self.busy as u64;
        Ok((self.latencies, self.faults))
    }
}
