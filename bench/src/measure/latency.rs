//! Latencies and costs of one transaction.

use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;

use crate::metric::{Metric, Sample};

/// The longest latency that is recorded precisely, in ns; longer ones count as this.
const LONGEST: u64 = 60_000_000_000;

/// An empty histogram: nanoseconds, two significant digits.
pub(crate) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, 2).context("a histogram")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LONGEST));
}

/// Adds the percentiles of all threads' histograms.
pub(crate) fn put<'a>(
    sample: &mut Sample,
    histograms: impl Iterator<Item = &'a Histogram<u64>>,
) -> anyhow::Result<()> {
    let mut all = histogram()?;
    for one in histograms {
        all.add(one).context("histograms of one kind")?;
    }
    for (metric, quantile) in [(Metric::P50, 0.5), (Metric::P99, 0.99), (Metric::P999, 0.999)] {
        sample.put(metric, all.value_at_quantile(quantile) as f64 / 1000.0);
    }
    Ok(())
}

/// Adds the contestant's CPU time, and its share for each of `count`.
pub(crate) fn put_cpu(sample: &mut Sample, cpu: Duration, count: u64) {
    sample.put(Metric::CpuSeconds, cpu.as_secs_f64());
    sample.put(Metric::CpuPerOne, cpu.as_secs_f64() * 1e6 / count as f64);
}
