//! The counts of one thread of the load.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::measure::latency;

/// The counts of one thread.
#[derive(Debug)]
pub(super) struct LoadTally {
    pub(super) latencies: Histogram<u64>,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    /// Requests a second, for each tenth of a second.
    pub(super) rates: Vec<f64>,
    pub(super) elapsed: Duration,
    /// Responses other than 200.
    pub(super) refused: u64,
    /// Connections that ended too early, and the reason of the first.
    pub(super) cut: u64,
    pub(super) first_cut: Option<String>,
    /// The client that the origin saw.
    pub(super) seen: String,
}

impl LoadTally {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            latencies: latency::histogram()?,
            requests: 0,
            bytes: 0,
            rates: Vec::new(),
            elapsed: Duration::ZERO,
            refused: 0,
            cut: 0,
            first_cut: None,
            seen: String::new(),
        })
    }
}
