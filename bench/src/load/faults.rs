//! What a thread found wrong.

use hdrhistogram::Histogram;

use super::conductor::Measured;
use crate::measure::latency;
use crate::metric::Sample;

/// Each thread's latencies and faults, measured.
pub(super) type Exchanged = Measured<(Histogram<u64>, Faults)>;

/// Counts, and a description of the first fault.
#[derive(Debug, Default)]
pub(super) struct Faults {
    wrong: u64,
    cut: u64,
    pub(super) unanswered: u64,
    first: Option<String>,
}

impl Faults {
    /// A response that is not the page.
    pub(super) fn wrong(&mut self) {
        self.wrong += 1;
    }

    /// A connection that could not be opened, or ended too early.
    pub(super) fn cut(&mut self, error: &anyhow::Error) {
        self.cut += 1;
        self.first.get_or_insert_with(|| format!("{error:#}"));
    }

    /// Reports all threads' faults together.
    pub(super) fn put<'a>(sample: &mut Sample, all: impl Iterator<Item = &'a Faults> + Clone) {
        let sum = |of: fn(&Faults) -> u64| all.clone().map(of).sum::<u64>();
        let first = all.clone().find_map(|faults| faults.first.as_deref());
        let reason = first.map_or(String::new(), |first| format!(" (the first: {first})"));
        for (count, what) in [
            (sum(|faults| faults.wrong), "wrong answers".to_owned()),
            (sum(|faults| faults.cut), format!("connections cut off{reason}")),
            (sum(|faults| faults.unanswered), "requests never answered".to_owned()),
        ] {
            if count > 0 {
                sample.flaw(format!("{count} {what}"));
            }
        }
    }
}

/// The latencies, the contestant's CPU time and the faults of a load of exchanges.
pub(super) fn put_with_latencies(sample: &mut Sample, measured: &Exchanged) -> anyhow::Result<()> {
    latency::put(sample, measured.reports.iter().map(|(latencies, _)| latencies))?;
    latency::put_cpu(sample, measured.cpu, measured.counts.done);
    Faults::put(sample, measured.reports.iter().map(|(_, faults)| faults));
    Ok(())
}
