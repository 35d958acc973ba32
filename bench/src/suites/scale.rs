//! How long a load lasts, and how large it is.

use std::time::Duration;

/// How long a load lasts, and how large it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Until buffers are full and code is hot; not counted.
    pub(crate) warm_up: Duration,
    /// What is counted.
    pub(crate) window: Duration,
    /// Threads of the load.
    pub(crate) threads: usize,
    /// Connections, or UDP flows, at a time.
    pub(crate) connections: usize,
    /// Connections that carry bulk.
    pub(crate) bulk_connections: usize,
    /// Datagrams of a flow without an answer yet.
    pub(crate) in_flight: usize,
    /// Idle sessions.
    pub(crate) idle: usize,
    /// The constant rate as a share of what NGINX reaches.
    pub(crate) rate_share: f64,
    /// The constant rate, requests/s; nothing before NGINX has been measured.
    pub(crate) rate: f64,
}
