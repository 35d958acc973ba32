//! 64 bytes and 64 bytes back, one request at a time on each connection: as fast as it goes, or at a constant
//! rate.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use anyhow::Context;
use rustix::io::Errno;

use super::exchange::{Exchange, Heard};
use super::{closed, faults, timetable};
use crate::clients::{Clients, v1_header};
use crate::contestant::Stand;
use crate::link;
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
    number: u64,
    /// See [`Exchange::since`].
    since: Option<Instant>,
}

pub(super) fn run(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let measured = closed::run(stand, scale, open_by_thread(stand, scale)?)?;
    let mut sample = Sample::default();
    sample.put(Metric::Transactions, measured.per_second(measured.counts.done));
    faults::put_with_latencies(&mut sample, &measured)?;
    Ok(sample)
}

/// Below what any contestant can do: the latency of a path that is not saturated.
pub(super) fn at_constant_rate(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let (mut sample, measured) =
        timetable::run(stand, scale, scale.ping_pong_rate, open_by_thread(stand, scale)?)?;
    sample.put(Metric::Transactions, measured.per_second(measured.counts.done));
    faults::put_with_latencies(&mut sample, &measured)?;
    Ok(sample)
}

/// Connections, divided among the load's threads.
fn open_by_thread(stand: &Stand, scale: &Scale) -> anyhow::Result<Vec<Vec<Connection>>> {
    let mut threads: Vec<Vec<Connection>> = (0..scale.threads).map(|_| Vec::new()).collect();
    let mut clients = Clients::share(stand.at.entrance, 0, 1);
    for number in 0..scale.connections {
        let (client, sender) = clients.take();
        let header = if stand.header { v1_header(client, stand.at.entrance)? } else { Vec::new() };
        let socket = link::connect(sender, stand.at.entrance, &header)?;
        socket.set_nonblocking(true)?;
        threads[number % scale.threads].push(Connection::new(socket.into(), number));
    }
    Ok(threads)
}

impl Connection {
    fn new(socket: OwnedFd, number: usize) -> Self {
        let mut request = [0; MESSAGE];
        for (byte, value) in request.iter_mut().zip(0u8..) {
            *byte = value;
        }
        request[8..16].copy_from_slice(&(number as u64).to_le_bytes());
        Self { socket, request, answer: [0; MESSAGE], filled: 0, number: 0, since: None }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Exchange for Connection {
    fn ask(&mut self, since: Instant) -> anyhow::Result<()> {
        self.number += 1;
        self.request[..8].copy_from_slice(&self.number.to_le_bytes());
        self.filled = 0;
        self.since = Some(since);
        // All or nothing: at most 64 bytes are in flight.
        rustix::io::write(&self.socket, &self.request).map(drop).context("write")
    }

    fn listen(&mut self) -> anyhow::Result<Heard> {
        let mut beyond = [0];
        let room = if self.filled < MESSAGE { &mut self.answer[self.filled..] } else { &mut beyond[..] };
        match rustix::io::read(&self.socket, room) {
            Ok(0) => anyhow::bail!("the end came"),
            Ok(_) if self.since.is_none() => anyhow::bail!("bytes came without a request"),
            Ok(read) => self.filled += read,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("read"),
        }
        if self.filled < MESSAGE {
            return Ok(Heard::Part);
        }
        let Some(since) = self.since.take() else { return Ok(Heard::Part) };
        Ok(if self.answer == self.request { Heard::Whole(since.elapsed()) } else { Heard::Wrong })
    }

    fn since(&self) -> Option<Instant> {
        self.since
    }

    fn forget_request(&mut self) {
        self.since = None;
    }
}
