//! Streams at full speed: echoed, only up, or only down. At the end each connection ends its direction and
//! reads to the end, so that a contestant that drops the tail is detected.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::conductor::{Counters, Cue, GLANCE, LoadWorker, Measured, Stage, conduct};
use crate::backend::Totals;
use crate::clients::{Clients, v1_header};
use crate::contestant::Stand;
use crate::link::{self, Events, Poll};
use crate::metric::{Metric, Sample};
use crate::pattern::{CHUNK, Pattern};
use crate::suites::Scale;

/// The size of a read or write of the echoed stream, as in tcpkali.
const STREAMING_CHUNK: usize = 64 * 1024;

/// The parameters of a flood.
struct Flow {
    pattern: Pattern,
    writes: bool,
    chunk: usize,
}

struct Connection {
    socket: OwnedFd,
    sent: u64,
    received: u64,
    wrong: u64,
    writing: bool,
    end: End,
}

/// How the reading direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotYet,
    Eof,
    Reset,
}

struct Flood {
    flow: Arc<Flow>,
    connections: Vec<Connection>,
    open: usize,
    buffer: Vec<u8>,
}

/// The seeds' load.
pub(super) fn streaming(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let flow = Flow { pattern: Pattern::ping(), writes: true, chunk: STREAMING_CHUNK };
    let measured = flood(stand, scale, scale.connections, flow)?;
    let mut sample = Sample::default();
    let counts = measured.counts;
    sample.put(Metric::BothMbps, measured.mbps(counts.sent + counts.received));
    sample.put(Metric::DownMbps, measured.mbps(counts.received));
    sample.put(Metric::UpMbps, measured.mbps(counts.sent));
    sample.put(Metric::DownPackets, measured.per_second(counts.received_packets));
    sample.put(Metric::UpPackets, measured.per_second(counts.sent_packets));
    put_cpu(&mut sample, &measured);
    let all = || measured.reports.iter().flatten();
    let missing: Vec<u64> = all().map(|one| one.sent.abs_diff(one.received)).collect();
    note_missing(&mut sample, &missing, missing.len());
    note_ends(&mut sample, all());
    Ok(sample)
}

/// Large writes towards the backend.
pub(super) fn bulk_up(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let flow = Flow { pattern: Pattern::bulk(), writes: true, chunk: CHUNK };
    let measured = flood(stand, scale, scale.bulk_connections, flow)?;
    let mut sample = Sample::default();
    sample.put(Metric::UpMbps, measured.mbps(measured.counts.sent));
    sample.put(Metric::UpPackets, measured.per_second(measured.counts.sent_packets));
    put_cpu(&mut sample, &measured);
    let all = || measured.reports.iter().flatten();
    let (sent, totals) = (all().map(|one| one.sent).sum::<u64>(), Totals::ask(stand.at.tally)?);
    note_missing(&mut sample, &[sent.abs_diff(totals.read)], all().count());
    note_wrong(&mut sample, totals.wrong);
    note_ends(&mut sample, all());
    Ok(sample)
}

/// Large writes from the backend.
pub(super) fn bulk_down(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let flow = Flow { pattern: Pattern::bulk(), writes: false, chunk: CHUNK };
    let measured = flood(stand, scale, scale.bulk_connections, flow)?;
    let mut sample = Sample::default();
    sample.put(Metric::DownMbps, measured.mbps(measured.counts.received));
    sample.put(Metric::DownPackets, measured.per_second(measured.counts.received_packets));
    put_cpu(&mut sample, &measured);
    let all = || measured.reports.iter().flatten();
    let (received, totals) = (all().map(|one| one.received).sum::<u64>(), Totals::ask(stand.at.tally)?);
    note_missing(&mut sample, &[totals.written.abs_diff(received)], all().count());
    note_ends(&mut sample, all());
    Ok(sample)
}

fn put_cpu<R>(sample: &mut Sample, measured: &Measured<R>) {
    let gigabytes = (measured.counts.sent + measured.counts.received) as f64 / 1e9;
    sample.put(Metric::CpuSeconds, measured.cpu.as_secs_f64());
    sample.put(Metric::CpuPerGigabyte, measured.cpu.as_secs_f64() / gigabytes);
}

fn note_missing(sample: &mut Sample, missing: &[u64], connections: usize) {
    let (short, bytes) = (missing.iter().filter(|&&bytes| bytes > 0).count(), missing.iter().sum::<u64>());
    if short > 0 && missing.len() > 1 {
        sample.flaw(format!("truncates: {short} of {connections} streams, {bytes} bytes missing"));
    } else if short > 0 {
        sample.flaw(format!("truncates: {bytes} bytes missing in {connections} streams"));
    }
}

fn note_wrong(sample: &mut Sample, wrong: u64) {
    if wrong > 0 {
        sample.flaw(format!("{wrong} reads with wrong bytes"));
    }
}

fn note_ends<'a>(sample: &mut Sample, all: impl Iterator<Item = &'a Connection> + Clone) {
    note_wrong(sample, all.clone().map(|one| one.wrong).sum());
    let ended = |end| all.clone().filter(|one| one.end == end).count();
    let (stuck, reset) = (ended(End::NotYet), ended(End::Reset));
    if stuck > 0 {
        sample.flaw(format!("{stuck} streams never ended"));
    }
    if reset > 0 {
        sample.flaw(format!("{reset} streams were reset"));
    }
}

fn flood(
    stand: &Stand,
    scale: &Scale,
    connections: usize,
    flow: Flow,
) -> anyhow::Result<Measured<Vec<Connection>>> {
    let flow = Arc::new(flow);
    let mut floods: Vec<Flood> = (0..scale.threads).map(|_| Flood::new(&flow)).collect();
    let mut clients = Clients::share(stand.at.entrance, 0, 1);
    for number in 0..connections {
        let (client, sender) = clients.take();
        let header = if stand.header { v1_header(client, stand.at.entrance)? } else { Vec::new() };
        let socket = link::connect(sender, stand.at.entrance, &header)?;
        socket.set_nonblocking(true)?;
        floods[number % scale.threads].connections.push(Connection::new(socket.into(), flow.writes));
    }
    conduct(floods, stand, scale)
}

impl Connection {
    fn new(socket: OwnedFd, writing: bool) -> Self {
        Self { socket, sent: 0, received: 0, wrong: 0, writing, end: End::NotYet }
    }

    fn interest(&self) -> EventFlags {
        if self.writing { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
    }

    fn write(&mut self, flow: &Flow, counters: &Counters) {
        match rustix::io::write(&self.socket, flow.pattern.at(self.sent, flow.chunk)) {
            Ok(written) => {
                self.sent += written as u64;
                counters.wrote(written);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end = End::Reset,
        }
    }

    fn read(&mut self, flow: &Flow, buffer: &mut [u8], counters: &Counters) {
        match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(0) => self.end = End::Eof,
            Ok(read) => {
                self.wrong += u64::from(!flow.pattern.matches(self.received, &buffer[..read]));
                self.received += read as u64;
                counters.read(read);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end = End::Reset,
        }
    }
}

impl Flood {
    fn new(flow: &Arc<Flow>) -> Self {
        let (flow, buffer) = (Arc::clone(flow), vec![0; flow.chunk]);
        Self { flow, connections: Vec::new(), open: 0, buffer }
    }

    fn advance(&mut self, number: usize, flags: EventFlags, counters: &Counters) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            connection.read(&self.flow, &mut self.buffer, counters);
        }
        if connection.end == End::NotYet && connection.writing && flags.contains(EventFlags::OUT) {
            connection.write(&self.flow, counters);
        }
    }

    /// Writes nothing more. Bytes in flight come back or pass through.
    fn turn_home(&mut self, poll: &Poll) -> anyhow::Result<()> {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection.writing = false;
            if connection.end == End::NotYet {
                poll.modify(&connection.socket, number, connection.interest())?;
                // A connection that was reset meanwhile reports it when it is read.
                let _ = shutdown(connection.socket.as_fd(), Shutdown::Write);
            }
        }
        Ok(())
    }
}

impl LoadWorker for Flood {
    type Report = Vec<Connection>;

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        for (number, connection) in self.connections.iter().enumerate() {
            poll.add(&connection.socket, number, connection.interest())?;
        }
        self.open = self.connections.len();
        let mut going_home = false;
        while self.open > 0 && cue.stage() != Stage::Over {
            poll.wait(&mut events, GLANCE)?;
            for (number, flags) in events.iter() {
                self.advance(number, flags, counters);
                if self.connections[number].end != End::NotYet {
                    poll.forget(&self.connections[number].socket)?;
                    self.open -= 1;
                }
            }
            if !going_home && cue.stage() == Stage::Homecoming {
                going_home = true;
                self.turn_home(&poll)?;
            }
        }
        Ok(self.connections)
    }
}
