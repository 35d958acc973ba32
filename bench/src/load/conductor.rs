//! The three stages of a load, announced by one thread and followed by the others: warm-up, the measured
//! window, and the end, in which everything in flight is awaited and checked.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::contestant::Stand;
use crate::suites::Scale;

/// The time-out of the end. What is still missing then is counted as lost.
const HOMECOMING: Duration = Duration::from_secs(8);
/// By how much a window may be extended until something happens in it.
const OVERTIME: Duration = Duration::from_secs(3);
/// How often threads check the stage when nothing else wakes them.
pub(super) const GLANCE: Duration = Duration::from_millis(10);
/// tcpkali's estimate of a packet, as used for the seeds' columns: each read or write counts as this many.
const PACKET_BYTES: u64 = 1460;

/// What the threads must do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    WarmUp,
    Window,
    Homecoming,
    /// Give up.
    Over,
}

/// The stage, shared by all threads.
#[derive(Debug, Default)]
pub(super) struct Cue(AtomicU8);

impl Cue {
    pub(super) fn stage(&self) -> Stage {
        match self.0.load(Relaxed) {
            0 => Stage::WarmUp,
            1 => Stage::Window,
            2 => Stage::Homecoming,
            _ => Stage::Over,
        }
    }

    fn announce(&self, stage: Stage) {
        self.0.store(stage as u8, Relaxed);
    }
}

/// One thread's counters. Separated from the others' by more than a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    sent_packets: AtomicU64,
    received_packets: AtomicU64,
    done: AtomicU64,
}

impl Counters {
    /// Counts a write of this many bytes.
    pub(super) fn wrote(&self, bytes: usize) {
        add(&self.sent, bytes as u64);
        add(&self.sent_packets, (bytes as u64).div_ceil(PACKET_BYTES));
    }

    /// Counts a read of this many bytes.
    pub(super) fn read(&self, bytes: usize) {
        add(&self.received, bytes as u64);
        add(&self.received_packets, (bytes as u64).div_ceil(PACKET_BYTES));
    }

    /// Counts this many transactions, connections or datagrams.
    pub(super) fn did(&self, count: u64) {
        add(&self.done, count);
    }
}

/// Only the owning thread writes the counter, so no locked instruction is needed.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

/// Sums over the threads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) sent_packets: u64,
    pub(super) received_packets: u64,
    pub(super) done: u64,
}

impl Counts {
    fn sum(counters: &[Counters]) -> Self {
        counters.iter().fold(Self::default(), |sum, one| Self {
            sent: sum.sent + one.sent.load(Relaxed),
            received: sum.received + one.received.load(Relaxed),
            sent_packets: sum.sent_packets + one.sent_packets.load(Relaxed),
            received_packets: sum.received_packets + one.received_packets.load(Relaxed),
            done: sum.done + one.done.load(Relaxed),
        })
    }

    fn is_nothing(self) -> bool {
        self.sent == 0 && self.received == 0 && self.done == 0
    }

    fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            sent_packets: self.sent_packets - before.sent_packets,
            received_packets: self.received_packets - before.received_packets,
            done: self.done - before.done,
        }
    }
}

/// A thread's work, until nothing is in flight or the stage is [`Stage::Over`].
pub(super) trait LoadWorker: Send {
    /// Its report at the end.
    type Report: Send;

    fn work(self, cue: &Cue, counters: &Counters) -> anyhow::Result<Self::Report>;
}

/// The results of the window.
pub(super) struct Measured<R> {
    pub(super) elapsed: Duration,
    pub(super) counts: Counts,
    /// CPU time of the contestant.
    pub(super) cpu: Duration,
    pub(super) reports: Vec<R>,
}

impl<R> Measured<R> {
    /// A count in the window, per second.
    pub(super) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.as_secs_f64()
    }

    /// Bytes in the window, in Mbit/s.
    pub(super) fn mbps(&self, bytes: u64) -> f64 {
        self.per_second(bytes) * 8.0 / 1e6
    }
}

/// Runs the workers through the stages.
pub(super) fn conduct<W: LoadWorker>(
    workers: Vec<W>,
    stand: &Stand,
    scale: &Scale,
) -> anyhow::Result<Measured<W::Report>> {
    let cue = Cue::default();
    let counters: Vec<Counters> = workers.iter().map(|_| Counters::default()).collect();
    thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .zip(&counters)
            .map(|(worker, counters)| scope.spawn(|| worker.work(&cue, counters)))
            .collect();
        thread::sleep(scale.warm_up);
        let (before, cpu_before, start) = (Counts::sum(&counters), stand.cpu_time(), Instant::now());
        cue.announce(Stage::Window);
        thread::sleep(scale.window);
        // On a busy machine, nothing at all may happen in a short window.
        while Counts::sum(&counters).since(before).is_nothing() && start.elapsed() < scale.window + OVERTIME {
            thread::sleep(GLANCE);
        }
        let (after, cpu_after, end) = (Counts::sum(&counters), stand.cpu_time(), Instant::now());
        cue.announce(Stage::Homecoming);
        // Counted in steps: while the host stops a virtual machine for seconds, nothing can arrive.
        let mut waited = Duration::ZERO;
        while waited < HOMECOMING && !running.iter().all(|thread| thread.is_finished()) {
            let step = Instant::now();
            thread::sleep(Duration::from_millis(1));
            waited += step.elapsed().min(GLANCE);
        }
        cue.announce(Stage::Over);
        let reports = running.into_iter().map(|thread| match thread.join() {
            Ok(report) => report,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok(Measured {
            elapsed: end - start,
            counts: after.since(before),
            cpu: cpu_after.saturating_sub(cpu_before),
            reports: reports.collect::<anyhow::Result<_>>()?,
        })
    })
}
