//! HTTP/2: several requests at a time on each connection. Every response is checked: status, and each byte.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;

use super::link::{Reader, TlsLink};
use crate::clients::Clients;
use crate::contestant::Stand;
use crate::credentials::HOST;
use crate::link::{self, Events, Poll};
use crate::load::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use crate::load::faults::{self, Faults};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::page::{PAGE_BYTES, page};
use crate::suites::Scale;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
/// SETTINGS_ENABLE_PUSH 0, SETTINGS_INITIAL_WINDOW_SIZE 2³¹ − 1.
const OURS: [u8; 12] = [0, 2, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff];
/// With the 65,535 bytes that a connection begins with, the largest window: more than a run receives.
const MORE: u32 = (1 << 31) - 1 - 65_535;
/// In HPACK: `:method: GET`, `:scheme: https`.
const GET_HTTPS: [u8; 2] = [0x82, 0x87];
/// In HPACK: `:status: 200`.
const OK: u8 = 0x88;
const PATH: &[u8] = b"/1kb";

/// The open requests of a connection: their stream, how much of the page has come, and since when they wait.
#[derive(Default)]
struct Open(Vec<(u32, usize, Instant)>);

/// Splits the server's bytes into frames, and checks them.
#[derive(Default)]
struct Frames {
    heard: Vec<u8>,
    open: Open,
    /// Since the last look.
    answered: Vec<Duration>,
    /// Frames that must be sent.
    due: Vec<u8>,
    wrong: Option<String>,
}

impl Reader for Frames {
    fn take(&mut self, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
        let heard = std::mem::take(&mut self.heard);
        let mut rest = &heard[..];
        while let Some((&[a, b, c, kind, flags, s, t, u, v], behind)) = rest.split_first_chunk::<HEAD_BYTES>()
        {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, next)) = behind.split_at_checked(length) else { break };
            if let Err(error) = self.frame(kind, flags, u32::from_be_bytes([s, t, u, v]), payload) {
                self.wrong.get_or_insert(format!("{error:#}"));
            }
            rest = next;
        }
        self.heard = rest.to_vec();
    }
}

impl Frames {
    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> anyhow::Result<()> {
        anyhow::ensure!(kind > HEADERS || flags & PADDED == 0, "padding");
        match kind {
            HEADERS => {
                // A change of the table's size (001xxxxx) may come first.
                let first = payload.iter().find(|byte| **byte >> 5 != 1);
                anyhow::ensure!(flags & END_HEADERS != 0 && first == Some(&OK), "a status that is not 200");
            }
            DATA => self.open.data(stream, payload)?,
            SETTINGS if flags & ACK == 0 => frame(&mut self.due, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut self.due, PING, ACK, 0, payload),
            RST_STREAM | GOAWAY | PUSH_PROMISE => anyhow::bail!("a frame of type {kind}: {payload:x?}"),
            _ => {}
        }
        if kind <= HEADERS && flags & END_STREAM != 0 {
            self.answered.push(self.open.end(stream)?);
        }
        Ok(())
    }
}

impl Open {
    fn at(&self, stream: u32) -> anyhow::Result<usize> {
        self.0.iter().position(|(id, ..)| *id == stream).context("a stream that nobody opened")
    }

    fn data(&mut self, stream: u32, bytes: &[u8]) -> anyhow::Result<()> {
        let at = self.at(stream)?;
        let (_, seen, _) = &mut self.0[at];
        anyhow::ensure!(page().get(*seen..*seen + bytes.len()) == Some(bytes), "wrong bytes");
        *seen += bytes.len();
        Ok(())
    }

    fn end(&mut self, stream: u32) -> anyhow::Result<Duration> {
        let (_, seen, since) = self.0.swap_remove(self.at(stream)?);
        anyhow::ensure!(seen == PAGE_BYTES, "an answer of {seen} bytes");
        Ok(since.elapsed())
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [.., a, b, c] = payload.len().to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The fields of a request. The first one of a connection puts path and host into the table, from where the
/// others take them, as browsers do.
fn fields(is_first: bool) -> Vec<u8> {
    let mut block = GET_HTTPS.to_vec();
    if is_first {
        for (name, value) in [(0x44, PATH), (0x41, HOST.as_bytes())] {
            // Each is shorter than 127 bytes.
            block.extend_from_slice(&[name, value.len().to_le_bytes()[0]]);
            block.extend_from_slice(value);
        }
    } else {
        block.extend_from_slice(&[0x80 | 63, 0x80 | 62]);
    }
    block
}

/// A connection with a number of requests at a time.
struct Streams {
    link: TlsLink,
    frames: Frames,
    next: u32,
}

impl Streams {
    fn open(stand: &Stand, clients: &mut Clients) -> anyhow::Result<Self> {
        let config = stand.tls.as_ref().context("a stand with TLS")?;
        let (_, sender) = clients.take();
        let socket = link::connect(sender, stand.at.entrance, &[])?;
        let mut own = Self { link: TlsLink::new(socket.into(), config)?, frames: Frames::default(), next: 1 };
        while !own.link.is_open() {
            anyhow::ensure!(own.link.flush()?, "the handshake could not be written");
            anyhow::ensure!(own.link.read(&mut own.frames)?, "nothing came for {:?}", link::TIMEOUT);
        }
        let mut first = PREFACE.to_vec();
        frame(&mut first, SETTINGS, 0, 0, &OURS);
        frame(&mut first, WINDOW_UPDATE, 0, 0, &MORE.to_be_bytes());
        own.link.send(&first)?;
        anyhow::ensure!(own.link.flush()?, "the preface could not be written");
        rustix::io::ioctl_fionbio(&own.link, true).context("FIONBIO")?;
        Ok(own)
    }

    /// Sends so many requests at once, after what is due.
    fn ask(&mut self, requests: usize) -> anyhow::Result<()> {
        let mut out = std::mem::take(&mut self.frames.due);
        for _ in 0..requests {
            frame(&mut out, HEADERS, END_HEADERS | END_STREAM, self.next, &fields(self.next == 1));
            self.frames.open.0.push((self.next, 0, Instant::now()));
            self.next += 2;
        }
        if out.is_empty() {
            return Ok(());
        }
        self.link.send(&out)?;
        // Some hundreds of bytes, which any socket's buffer takes.
        anyhow::ensure!(self.link.flush()?, "requests could not be written");
        Ok(())
    }

    fn is_busy(&self) -> bool {
        !self.frames.open.0.is_empty()
    }
}

impl AsFd for Streams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

struct Worker {
    connections: Vec<Streams>,
    at_once: usize,
    latencies: Histogram<u64>,
    faults: Faults,
}

/// `at_once` requests on each of these connections, and a new one for each answer.
pub(super) fn run(
    stand: &Stand,
    scale: &Scale,
    connections: usize,
    at_once: usize,
) -> anyhow::Result<Sample> {
    let mut clients = Clients::share(stand.at.entrance, 0, 1);
    let mut workers = Vec::new();
    for share in 0..scale.threads {
        let own = (share..connections).step_by(scale.threads);
        let connections = own.map(|_| Streams::open(stand, &mut clients)).collect::<anyhow::Result<_>>()?;
        let latencies = latency::histogram()?;
        workers.push(Worker { connections, at_once, latencies, faults: Faults::default() });
    }
    let measured = conduct(workers, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Requests, measured.per_second(measured.counts.done));
    faults::put_with_latencies(&mut sample, &measured)?;
    Ok(sample)
}

impl Worker {
    /// Whether the connection waits for answers afterwards.
    fn advance(&mut self, number: usize, stage: Stage, counters: &Counters) -> anyhow::Result<bool> {
        let connection = &mut self.connections[number];
        connection.link.read(&mut connection.frames)?;
        if let Some(wrong) = connection.frames.wrong.take() {
            anyhow::bail!(wrong);
        }
        let answered = connection.frames.answered.len();
        counters.did(answered as u64);
        for took in connection.frames.answered.drain(..) {
            if stage == Stage::Window {
                latency::record(&mut self.latencies, took);
            }
        }
        let goes_on = stage == Stage::WarmUp || stage == Stage::Window;
        connection.ask(if goes_on { answered } else { 0 })?;
        Ok(connection.is_busy())
    }
}

impl LoadWorker for Worker {
    type Report = (Histogram<u64>, Faults);

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        let mut busy = self.connections.len();
        for (number, connection) in self.connections.iter_mut().enumerate() {
            poll.add(&*connection, number, EventFlags::IN)?;
            connection.ask(self.at_once)?;
        }
        while busy > 0 && cue.stage() != Stage::Over {
            poll.wait(&mut events, GLANCE)?;
            let stage = cue.stage();
            for (number, _) in events.iter() {
                match self.advance(number, stage, counters) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) => self.faults.cut(&error),
                }
                // Later events on it don't matter, and its end would be reported forever.
                poll.forget(&self.connections[number])?;
                busy -= 1;
            }
        }
        self.faults.unanswered = self.connections.iter().map(|one| one.frames.open.0.len() as u64).sum();
        Ok((self.latencies, self.faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(&mut bytes, SETTINGS, 0, 0, &[]);
        frame(&mut bytes, HEADERS, END_HEADERS, 1, &[0x20, status]);
        let (first, rest) = body.split_at(body.len() / 2);
        frame(&mut bytes, DATA, 0, 1, first);
        frame(&mut bytes, DATA, END_STREAM, 1, rest);
        bytes
    }

    fn after(bytes: &[u8], size: usize) -> Frames {
        let mut frames = Frames::default();
        frames.open.0.push((1, 0, Instant::now()));
        bytes.chunks(size).for_each(|piece| frames.take(piece));
        frames
    }

    #[test]
    fn an_answer_may_come_in_any_parts() {
        let bytes = answer(OK, page());
        for size in [1, 10, bytes.len()] {
            let frames = after(&bytes, size);
            assert_eq!((frames.wrong, frames.answered.len()), (None, 1));
            assert_eq!(frames.due, [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn what_differs_is_noticed() {
        let mut changed = page().to_vec();
        changed[700] ^= 1;
        for bytes in [answer(0x8d, page()), answer(OK, &changed), answer(OK, &page()[1..]), answer(OK, b"")] {
            assert!(after(&bytes, 100).wrong.is_some());
        }
    }
}
