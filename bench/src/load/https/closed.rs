//! The closed loop: on each connection a request, its response, the next request.

use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;

use super::connection::{Connection, Heard};
use super::faults::HttpsFaults;
use crate::contestant::Stand;
use crate::link::{Events, Poll};
use crate::load::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::suites::Scale;

struct ClosedLoop {
    connections: Vec<Connection>,
    latencies: Histogram<u64>,
    faults: HttpsFaults,
}

pub(super) fn run(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    let workers = super::open_by_thread(stand, scale, connections)?.into_iter().map(|connections| {
        Ok(ClosedLoop { connections, latencies: latency::histogram()?, faults: HttpsFaults::default() })
    });
    let measured = conduct(workers.collect::<anyhow::Result<Vec<_>>>()?, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Requests, measured.per_second(measured.counts.done));
    super::put_latencies_and_faults(&mut sample, &measured)?;
    Ok(sample)
}

impl ClosedLoop {
    /// Whether the connection has an open request afterwards.
    fn advance(&mut self, number: usize, stage: Stage, counters: &Counters) -> anyhow::Result<bool> {
        let connection = &mut self.connections[number];
        match connection.listen()? {
            Heard::Part => return Ok(connection.is_busy()),
            Heard::Wrong => {
                self.faults.wrong();
                return Ok(false);
            }
            Heard::Page(latency) => {
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

impl LoadWorker for ClosedLoop {
    type Report = (Histogram<u64>, HttpsFaults);

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
