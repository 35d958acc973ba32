//! Connections for one request: connect, a full handshake (no resumption), the request, the page, close. The
//! load closes first, as in [`crate::load::connections`].

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustls::ClientConfig;

use super::answer::Answer;
use super::link::TlsLink;
use crate::clients::Clients;
use crate::contestant::Stand;
use crate::link::{Events, Poll, socket_from};
use crate::load::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use crate::load::faults::{self, Faults};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::place;
use crate::suites::Scale;

/// One connection after another.
struct Slot {
    link: TlsLink,
    answer: Answer,
    has_asked: bool,
    begun: Instant,
}

struct TlsKnocker<'a> {
    stand: &'a Stand<'a>,
    config: Arc<ClientConfig>,
    clients: Clients,
    slots: Vec<Option<Slot>>,
    busy: usize,
    latencies: Histogram<u64>,
    faults: Faults,
}

pub(super) fn run(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    let config = stand.tls.as_ref().context("a stand with TLS")?;
    let shares = scale.threads;
    let workers = (0..shares).map(|share| {
        let slots = (share..connections).step_by(shares).count();
        Ok(TlsKnocker {
            stand,
            config: Arc::clone(config),
            clients: Clients::share(stand.at.entrance, share, shares),
            slots: (0..slots).map(|_| None).collect(),
            busy: 0,
            latencies: latency::histogram()?,
            faults: Faults::default(),
        })
    });
    let measured = conduct(workers.collect::<anyhow::Result<Vec<_>>>()?, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Handshakes, measured.per_second(measured.counts.done));
    faults::put_with_latencies(&mut sample, &measured)?;
    let (_, cut_short) = place::time_wait();
    if cut_short > 0 {
        sample.flaw(format!("the kernel cut {cut_short} sockets in TIME_WAIT short"));
    }
    Ok(sample)
}

impl TlsKnocker<'_> {
    /// Starts the next connection of a slot.
    fn knock(&mut self, number: usize, poll: &Poll) -> anyhow::Result<()> {
        let (_, sender) = self.clients.take();
        let socket = socket_from(sender)?;
        socket.set_nonblocking(true)?;
        match rustix::net::connect(&socket, &self.stand.at.entrance) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error).context("connect"),
        }
        let begun = Instant::now();
        let link = TlsLink::new(socket.into(), &self.config)?;
        let mut slot = Slot { link, answer: Answer::default(), has_asked: false, begun };
        let flags = match slot.link.flush() {
            Ok(true) => EventFlags::IN,
            // Not connected yet (the backlog was full), or refused: an event will tell.
            Ok(false) | Err(_) => EventFlags::OUT,
        };
        poll.add(&slot, number, flags)?;
        self.slots[number] = Some(slot);
        self.busy += 1;
        Ok(())
    }

    /// Continues a slot's connection. Returns whether it is over.
    fn advance(
        &mut self,
        number: usize,
        flags: EventFlags,
        poll: &Poll,
        stage: Stage,
        counters: &Counters,
    ) -> anyhow::Result<bool> {
        let Some(Some(slot)) = self.slots.get_mut(number) else { return Ok(false) };
        match slot.advance() {
            Err(error) => self.faults.cut(&error),
            Ok(Step::ToWrite) => {
                poll.modify(&*slot, number, EventFlags::IN | EventFlags::OUT)?;
                return Ok(false);
            }
            Ok(Step::ToRead) => {
                if flags.contains(EventFlags::OUT) {
                    poll.modify(&*slot, number, EventFlags::IN)?;
                }
                return Ok(false);
            }
            Ok(Step::Over) if slot.answer.is_wrong() => self.faults.wrong(),
            Ok(Step::Over) => {
                counters.did(1);
                if stage == Stage::Window {
                    latency::record(&mut self.latencies, slot.begun.elapsed());
                }
                // It doesn't matter whether it still arrives.
                let _ = slot.link.say_goodbye().and_then(|()| slot.link.flush());
            }
        }
        Ok(true)
    }
}

/// What a connection waits for.
enum Step {
    ToWrite,
    ToRead,
    /// Nothing: the response is complete.
    Over,
}

impl Slot {
    fn advance(&mut self) -> anyhow::Result<Step> {
        if !self.link.flush()? {
            return Ok(Step::ToWrite);
        }
        self.link.read(&mut self.answer)?;
        if self.answer.is_over() {
            return Ok(Step::Over);
        }
        if self.link.is_open() && !self.has_asked {
            self.link.ask()?;
            self.has_asked = true;
        }
        // The last bytes of the handshake and the request are sent together.
        Ok(if self.link.flush()? { Step::ToRead } else { Step::ToWrite })
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl LoadWorker for TlsKnocker<'_> {
    type Report = (Histogram<u64>, Faults);

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        for number in 0..self.slots.len() {
            self.knock(number, &poll)?;
        }
        while self.busy > 0 && cue.stage() != Stage::Over {
            poll.wait(&mut events, GLANCE)?;
            let stage = cue.stage();
            for (number, flags) in events.iter() {
                if self.advance(number, flags, &poll, stage, counters)? {
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
