//! A constant rate: each connection has a timetable, and a response is timed from when its request was due,
//! whether or not the connection was free then. So a contestant that stalls can't hide the delay of requests
//! that were due meanwhile ("coordinated omission", the reason for wrk2).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::epoll::EventFlags;
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;

use super::conductor::{Counters, Cue, GLANCE, LoadWorker, Stage, conduct};
use super::exchange::{Exchange, Heard};
use super::faults::{Exchanged, Faults};
use crate::contestant::Stand;
use crate::link::{Events, Poll};
use crate::measure::latency;
use crate::metric::{Metric, Sample};
use crate::suites::Scale;

/// The nice value of the load's threads.
const PRECEDENCE: i32 = -20;

struct Timetable<C> {
    connections: Vec<C>,
    /// Connections without an open request, by when their next one is due.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The interval between the requests of a connection.
    interval: Duration,
    /// The part of an interval by which this thread's first request is later than the others'.
    offset: f64,
    /// Requests due between these times are counted.
    begin: Option<Instant>,
    end: Option<Instant>,
    latencies: Histogram<u64>,
    faults: Faults,
}

/// `rate` requests a second, evenly spread over the connections of all threads, and over time. At least one
/// on each connection in a window, however slow the reference was.
pub(super) fn run<C: Exchange>(
    stand: &Stand,
    scale: &Scale,
    rate: f64,
    threads: Vec<Vec<C>>,
) -> anyhow::Result<(Sample, Exchanged)> {
    anyhow::ensure!(rate.is_finite() && rate > 0.0, "no rate is given");
    let connections = threads.iter().map(Vec::len).sum::<usize>() as f64;
    let rate = rate.max(connections / scale.window.as_secs_f64());
    let interval = Duration::try_from_secs_f64(connections / rate)?;
    let workers = threads.into_iter().enumerate().map(|(thread, own)| {
        Ok(Timetable {
            connections: own,
            due: BinaryHeap::new(),
            interval,
            offset: thread as f64 / connections,
            begin: None,
            end: None,
            latencies: latency::histogram()?,
            faults: Faults::default(),
        })
    });
    let measured = conduct(workers.collect::<anyhow::Result<Vec<_>>>()?, stand, scale)?;
    let mut sample = Sample::default();
    sample.put(Metric::Asked, rate);
    Ok((sample, measured))
}

impl<C: Exchange> Timetable<C> {
    /// Records the start and the end of the window.
    fn note(&mut self, stage: Stage) {
        match stage {
            Stage::WarmUp => {}
            Stage::Window => drop(self.begin.get_or_insert_with(Instant::now)),
            Stage::Homecoming | Stage::Over => drop(self.end.get_or_insert_with(Instant::now)),
        }
    }

    fn is_over(&self, due: Instant) -> bool {
        self.end.is_some_and(|end| due >= end)
    }

    /// Sends the due requests. Returns the time until the next.
    fn send_due(&mut self, poll: &Poll) -> anyhow::Result<Duration> {
        while let Some(&Reverse((due, number))) = self.due.peek() {
            let now = Instant::now();
            if due > now && !self.is_over(due) {
                return Ok((due - now).min(GLANCE));
            }
            self.due.pop();
            if !self.is_over(due)
                && let Err(error) = self.connections[number].ask(due)
            {
                self.give_up(number, &error, poll)?;
            }
        }
        Ok(GLANCE)
    }

    fn advance(&mut self, number: usize, counters: &Counters, poll: &Poll) -> anyhow::Result<()> {
        let Some(due) = self.connections[number].since() else {
            // It has sent bytes without a request: most likely an end.
            return match self.connections[number].listen() {
                Ok(_) => Ok(()),
                Err(error) => self.give_up(number, &error, poll),
            };
        };
        match self.connections[number].listen() {
            Ok(Heard::Part) => {}
            Ok(Heard::Whole(latency)) => {
                counters.did(1);
                self.record(due, latency);
                self.due.push(Reverse((due + self.interval, number)));
            }
            Ok(Heard::Wrong) => {
                self.faults.wrong();
                poll.forget(&self.connections[number])?;
            }
            Err(error) => self.give_up(number, &error, poll)?,
        }
        Ok(())
    }

    fn record(&mut self, due: Instant, latency: Duration) {
        if self.begin.is_some_and(|begin| due >= begin) {
            latency::record(&mut self.latencies, latency);
        }
    }

    /// A connection that has ended sends no more requests.
    fn give_up(&mut self, number: usize, error: &anyhow::Error, poll: &Poll) -> anyhow::Result<()> {
        poll.forget(&self.connections[number])?;
        self.faults.cut(error);
        self.due.retain(|Reverse((_, own))| *own != number);
        self.connections[number].forget_request();
        Ok(())
    }

    fn is_busy(&self) -> bool {
        !self.due.is_empty() || self.connections.iter().any(C::is_busy)
    }

    /// A request that was never answered has waited at least until now, and so have all that were due after
    /// it.
    fn count_unanswered(&mut self) {
        let now = Instant::now();
        let waiting: Vec<Instant> = self.connections.iter().filter_map(C::since).collect();
        for mut due in waiting {
            while due < now && !self.is_over(due) {
                self.record(due, now - due);
                self.faults.unanswered += 1;
                due += self.interval;
            }
        }
    }
}

impl<C: Exchange> LoadWorker for Timetable<C> {
    type Report = (Histogram<u64>, Faults);

    fn work(mut self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report> {
        // Otherwise the kernel may extend each wait by up to 50 µs.
        set_current_timer_slack(NonZeroU64::new(1))?;
        // If permitted, the load has priority: a delay caused by the load is no property of a contestant.
        let _ = setpriority_process(None, PRECEDENCE);
        let (poll, mut events) = (Poll::new()?, Events::default());
        let (start, all) = (Instant::now(), self.connections.len() as f64);
        for (number, connection) in self.connections.iter().enumerate() {
            poll.add(connection, number, EventFlags::IN)?;
            let first = self.interval.mul_f64(number as f64 / all + self.offset);
            self.due.push(Reverse((start + first, number)));
        }
        while self.is_busy() && cue.stage() != Stage::Over {
            self.note(cue.stage());
            let timeout = self.send_due(&poll)?;
            poll.wait(&mut events, timeout)?;
            for (number, _) in events.iter() {
                self.advance(number, counters, &poll)?;
            }
        }
        self.note(Stage::Over);
        self.count_unanswered();
        Ok((self.latencies, self.faults))
    }
}
