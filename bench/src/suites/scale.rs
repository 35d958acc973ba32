//! The duration and size of a load.

use std::time::Duration;

/// The duration and size of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// The warm-up: until buffers are full and code is hot; not counted.
    pub(crate) warm_up: Duration,
    /// The measured window.
    pub(crate) window: Duration,
    /// Threads of the load.
    pub(crate) threads: usize,
    /// Connections, or UDP flows, at a time.
    pub(crate) connections: usize,
    /// Connections with bulk data.
    pub(crate) bulk_connections: usize,
    /// Datagrams of a flow in flight.
    pub(crate) in_flight: usize,
    /// Idle sessions.
    pub(crate) idle: usize,
    /// The constant rate of ping-pong-rate, requests/s.
    pub(crate) ping_pong_rate: f64,
    /// The constant rate as a share of NGINX's rate.
    pub(crate) rate_share: f64,
    /// The constant rate, requests/s; 0 before NGINX has been measured.
    pub(crate) rate: f64,
}
