//! The closed loop: on each connection a request, its response, the next request.

use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;

use super::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use super::exchange::{Exchange, Heard};
use super::faults::{Exchanged, Faults};
use crate::contestant::Stand;
use crate::link::{Events, Poll};
use crate::measure::latency;
use crate::suites::Scale;

struct ClosedLoop<C> {
    connections: Vec<C>,
    latencies: Histogram<u64>,
    faults: Faults,
}

pub(super) fn run<C: Exchange>(
    stand: &Stand,
    scale: &Scale,
    threads: Vec<Vec<C>>,
) -> anyhow::Result<Exchanged> {
    let workers = threads.into_iter().map(|connections| {
        Ok(ClosedLoop { connections, latencies: latency::histogram()?, faults: Faults::default() })
    });
    conduct(workers.collect::<anyhow::Result<Vec<_>>>()?, stand, scale)
}

impl<C: Exchange> ClosedLoop<C> {
    /// Whether the connection has an open request afterwards.
    fn advance(&mut self, number: usize, stage: Stage, counters: &Counters) -> anyhow::Result<bool> {
        let connection = &mut self.connections[number];
        match connection.listen()? {
            Heard::Part => return Ok(connection.is_busy()),
            Heard::Wrong => {
                self.faults.wrong();
                return Ok(false);
            }
            Heard::Whole(latency) => {
                counters.did(1);
                if stage == Stage::Window {
                    latency::record(&mut self.latencies, latency);
                }
            }
        }
        let goes_on = stage == Stage::WarmUp || stage == Stage::Window;
        if goes_on {
            connection.ask(Instant::now())?;
        }
        Ok(goes_on)
    }
}

impl<C: Exchange> LoadWorker for ClosedLoop<C> {
    type Report = (Histogram<u64>, Faults);

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        let (poll, mut events) = (Poll::new()?, Events::default());
        let mut busy = self.connections.len();
        for (number, connection) in self.connections.iter_mut().enumerate() {
            poll.add(&*connection, number, EventFlags::IN)?;
            connection.ask(Instant::now())?;
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
        self.faults.unanswered = busy as u64;
        Ok((self.latencies, self.faults))
    }
}
