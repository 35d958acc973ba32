//! The loads: what they do, which backend they need, and what they measure.

mod conductor;
mod connections;
mod datagrams;
mod flood;
mod flows;
mod https;
mod idle;
mod ping_pong;
mod suite;

use std::str::FromStr;
use std::time::Duration;

pub(crate) use https::page;
pub(crate) use suite::{Selection, Suite};

use crate::backend::{Kind, OriginKind, Totals};
use crate::contestant::Stand;
use crate::metric::{Metric, Sample};

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

/// Connections of the constant rate, and of the load that it is a share of.
const MANY: usize = 64;
/// Connections of the guide's command line for wrk2.
const FEW: usize = 10;

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// `PING`, CR LF, as fast as the socket takes it, echoed.
    Streaming,
    /// 64 bytes there, 64 bytes back.
    PingPong,
    /// Connect, header and a byte, the byte back, close.
    Connections,
    /// Large writes towards the backend.
    BulkUp,
    /// Large writes from the backend.
    BulkDown,
    /// Datagrams of 64 bytes, echoed.
    Udp64,
    /// Datagrams of 1 400 bytes, echoed.
    Udp1400,
    /// Sessions that do nothing.
    Idle,
    /// A page of 1 KiB by HTTPS, again and again, on ten connections.
    Https10,
    /// Likewise, on 64.
    Https64,
    /// Likewise, at a constant rate.
    HttpsRate,
    /// Connect, handshake, one page, close.
    Handshakes,
    /// HTTPS connections that do nothing.
    HttpsIdle,
    /// A page of 1 KiB by HTTPS, again and again, on the kernel's stack and on VPP's.
    HttpsStacks,
}

/// What a load is carried by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    /// TCP with TLS and HTTP/1.1 in it, on both sides of a contestant, and no PROXY header.
    Https,
    /// The same, on a network stack that is the contestant's.
    Stacked,
}

impl Load {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Load; 14] = [
        Load::Streaming,
        Load::PingPong,
        Load::Connections,
        Load::BulkUp,
        Load::BulkDown,
        Load::Udp64,
        Load::Udp1400,
        Load::Idle,
        Load::Https10,
        Load::Https64,
        Load::HttpsRate,
        Load::Handshakes,
        Load::HttpsIdle,
        Load::HttpsStacks,
    ];

    /// The load by whose throughput of NGINX the constant rate is set.
    pub(crate) const REFERENCE: Load = Load::Https64;

    /// Its name on the command line and in the tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Streaming => "streaming",
            Self::PingPong => "ping-pong",
            Self::Connections => "connections",
            Self::BulkUp => "bulk-up",
            Self::BulkDown => "bulk-down",
            Self::Udp64 => "udp-64",
            Self::Udp1400 => "udp-1400",
            Self::Idle => "idle",
            Self::Https10 => "https-10",
            Self::Https64 => "https-64",
            Self::HttpsRate => "https-rate",
            Self::Handshakes => "handshakes",
            Self::HttpsIdle => "https-idle",
            Self::HttpsStacks => "https-stacks",
        }
    }

    /// What it does, in a few words.
    pub(crate) fn describe(self, scale: &Scale) -> String {
        let (connections, bulk) = (scale.connections, scale.bulk_connections);
        match self {
            Self::Streaming => format!(
                "{connections} connections, PROXY v1 header, then `PING\\r\\n` as fast as the socket takes it, echoed"
            ),
            Self::PingPong => {
                format!("{connections} connections, 64 bytes there and 64 back, one at a time on each")
            }
            Self::Connections => format!(
                "connect, header and one byte, the byte echoed, close; {connections} at a time, each from another client"
            ),
            Self::BulkUp => format!("{bulk} connections, 128 KiB writes towards the backend"),
            Self::BulkDown => format!("{bulk} connections, 128 KiB writes from the backend"),
            Self::Udp64 | Self::Udp1400 => format!(
                "{connections} flows, {} datagrams of {} bytes in flight on each, PROXY v2 header in each, echoed",
                scale.in_flight,
                self.datagram_bytes()
            ),
            Self::Idle => format!("{} sessions that have exchanged one byte and then do nothing", scale.idle),
            Self::Https10 => format!("{FEW} connections kept alive, `GET /1kb` again and again on each"),
            Self::Https64 => format!("{MANY} connections kept alive, `GET /1kb` again and again on each"),
            Self::HttpsRate => format!(
                "{MANY} connections kept alive, together {:.0} % of the requests/s that NGINX reaches on {} in the same round, evenly \
                 spread; latency from when a request was due, sent or not",
                scale.rate_share * 100.0,
                Self::REFERENCE.name()
            ),
            Self::Handshakes => format!(
                "connect, full handshake, `GET /1kb`, close; {connections} at a time, nothing resumed"
            ),
            Self::HttpsIdle => {
                format!("{} connections that have had one page each and then do nothing", scale.idle)
            }
            Self::HttpsStacks => format!(
                "{} connections kept alive, `GET /1kb` again and again on each; certificates verified at each hop",
                crate::stacks::CONNECTIONS
            ),
        }
    }

    /// Bytes of a datagram, the header not counted.
    const fn datagram_bytes(self) -> usize {
        if matches!(self, Self::Udp64) { 64 } else { 1400 }
    }

    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Udp64 | Self::Udp1400 => Transport::Udp,
            Self::Https10 | Self::Https64 | Self::HttpsRate | Self::Handshakes | Self::HttpsIdle => {
                Transport::Https
            }
            Self::HttpsStacks => Transport::Stacked,
            _ => Transport::Tcp,
        }
    }

    pub(crate) const fn suite(self) -> Suite {
        match self.transport() {
            Transport::Tcp | Transport::Udp => Suite::Proxy,
            Transport::Https => Suite::Https,
            Transport::Stacked => Suite::Stacks,
        }
    }

    /// The backend that it talks to.
    pub(crate) const fn backend(self, origin: OriginKind) -> Kind {
        match self {
            Self::Streaming | Self::PingPong => Kind::Echo,
            Self::Connections | Self::Idle => Kind::EchoShort,
            Self::BulkUp => Kind::Sink,
            Self::BulkDown => Kind::Source,
            Self::Udp64 | Self::Udp1400 => Kind::Datagrams,
            Self::Https10
            | Self::Https64
            | Self::HttpsRate
            | Self::Handshakes
            | Self::HttpsIdle
            | Self::HttpsStacks => Kind::Origin(origin),
        }
    }

    /// What contestants are compared by.
    pub(crate) const fn headline(self) -> Metric {
        match self {
            Self::Streaming | Self::BulkDown => Metric::DownMbps,
            Self::BulkUp => Metric::UpMbps,
            Self::PingPong => Metric::Transactions,
            Self::Connections => Metric::Connections,
            Self::Udp64 | Self::Udp1400 => Metric::Echoed,
            Self::Idle | Self::HttpsIdle => Metric::Resident,
            Self::Https10 | Self::Https64 | Self::HttpsStacks => Metric::Requests,
            Self::HttpsRate => Metric::P99,
            Self::Handshakes => Metric::Handshakes,
        }
    }

    /// All that it measures, in the order of its table.
    pub(crate) const fn metrics(self) -> &'static [Metric] {
        use Metric as M;
        match self {
            Self::Streaming => &[
                M::BothMbps,
                M::DownMbps,
                M::UpMbps,
                M::DownPackets,
                M::UpPackets,
                M::CpuSeconds,
                M::CpuPerGigabyte,
            ],
            Self::PingPong => &[M::Transactions, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
            Self::Connections => {
                &[M::Connections, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne, M::TimeWait]
            }
            Self::BulkUp => &[M::UpMbps, M::UpPackets, M::CpuSeconds, M::CpuPerGigabyte],
            Self::BulkDown => &[M::DownMbps, M::DownPackets, M::CpuSeconds, M::CpuPerGigabyte],
            Self::Udp64 | Self::Udp1400 => &[M::Echoed, M::Loss, M::CpuSeconds, M::CpuPerOne],
            Self::Idle | Self::HttpsIdle => &[M::Resident, M::Kernel, M::Descriptors],
            Self::Https10 | Self::Https64 => {
                &[M::Requests, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne]
            }
            Self::HttpsRate => &[M::Asked, M::Requests, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
            Self::HttpsStacks => &[M::Requests, M::P50, M::P99, M::P999],
            Self::Handshakes => &[M::Handshakes, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
        }
    }

    /// The scale, with a longer warm-up where buffers take long to fill: fifty echoed streams hold hundreds of megabytes.
    fn adapt(self, scale: &Scale) -> Scale {
        let factor = if self == Self::Streaming { 4 } else { 1 };
        Scale { warm_up: scale.warm_up * factor, ..*scale }
    }

    /// Puts the load on what stands in the calling thread's network.
    pub(crate) fn run(self, stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
        let scale = &self.adapt(scale);
        let mut sample = match self {
            Self::Streaming => flood::streaming(stand, scale),
            Self::BulkUp => flood::bulk_up(stand, scale),
            Self::BulkDown => flood::bulk_down(stand, scale),
            Self::PingPong => ping_pong::run(stand, scale),
            Self::Connections => connections::run(stand, scale),
            Self::Udp64 | Self::Udp1400 => datagrams::run(stand, scale, self.datagram_bytes()),
            Self::Idle => idle::run(stand, scale),
            Self::Https10 => https::closed_loop(stand, scale, FEW),
            Self::Https64 => https::closed_loop(stand, scale, MANY),
            Self::HttpsRate => https::constant_rate(stand, scale, MANY),
            Self::Handshakes => https::handshakes(stand, scale, scale.connections),
            Self::HttpsIdle => https::idle(stand, scale),
            Self::HttpsStacks => anyhow::bail!("its parties stand on stacks of their own"),
        }?;
        if stand.header {
            let strangers = Totals::ask()?.strangers;
            if strangers > 0 {
                sample.flaw(format!("the backend did not see the client in {strangers} sessions"));
            }
        }
        Ok(sample)
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Load::ALL.map(Load::name).join(", ");
        Load::ALL
            .into_iter()
            .find(|load| load.name() == name)
            .ok_or_else(|| format!("expected proxy, https, stacks, or one of {}", names()))
    }
}
