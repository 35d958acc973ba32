//! The loads: what each does, which backend it needs, and what it measures.

use std::num::NonZeroUsize;
use std::str::FromStr;

use super::backend::{Kind, OriginKind};
use super::scale::Scale;
use super::suite::Suite;
use super::transport::Transport;
use crate::metric::Metric;

/// The connections of the constant rate, and of the load from which it is derived.
pub(crate) const MANY: usize = 64;
/// The connections of the guide's command line for wrk2.
pub(crate) const FEW: usize = 10;

/// The connections of the loads on two stacks: wrk2 needs this many on VPP, where the guide has 10.
pub(crate) const ON_STACKS: NonZeroUsize = NonZeroUsize::new(12).expect("twelve");

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// `PING`, CR LF, at the rate that the socket accepts, echoed.
    Streaming,
    /// 64 bytes and 64 bytes back.
    PingPong,
    /// The same, at a constant rate.
    PingPongRate,
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
    /// Idle sessions.
    Idle,
    /// A page of 1 KiB by HTTPS, repeatedly, on ten connections.
    Https10,
    /// The same, on 64.
    Https64,
    /// The same, at a constant rate.
    HttpsRate,
    /// The page by HTTP/2, on ten connections, one request at a time on each.
    HttpsStreams1,
    /// The same, ten at a time on each.
    HttpsStreams10,
    /// The same, fifty.
    HttpsStreams50,
    /// Connect, handshake, one page, close.
    Handshakes,
    /// Idle HTTPS connections.
    HttpsIdle,
    /// A page of 1 KiB by HTTPS, repeatedly, on the kernel's stack and on VPP's.
    HttpsStacks,
    /// As [`Load::PingPong`], each party on a host of its own.
    HostsPingPong,
    /// As [`Load::PingPongRate`], each party on a host of its own.
    HostsPingPongRate,
    /// As [`Load::Connections`], each party on a host of its own.
    HostsConnections,
    /// As [`Load::BulkUp`], each party on a host of its own.
    HostsBulkUp,
    /// As [`Load::BulkDown`], each party on a host of its own.
    HostsBulkDown,
}

impl Load {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Load; 23] = [
        Load::Streaming,
        Load::PingPong,
        Load::PingPongRate,
        Load::Connections,
        Load::BulkUp,
        Load::BulkDown,
        Load::Udp64,
        Load::Udp1400,
        Load::Idle,
        Load::HostsPingPong,
        Load::HostsPingPongRate,
        Load::HostsConnections,
        Load::HostsBulkUp,
        Load::HostsBulkDown,
        Load::Https10,
        Load::Https64,
        Load::HttpsRate,
        Load::HttpsStreams1,
        Load::HttpsStreams10,
        Load::HttpsStreams50,
        Load::Handshakes,
        Load::HttpsIdle,
        Load::HttpsStacks,
    ];

    /// The load whose throughput with NGINX determines the constant rate.
    pub(crate) const REFERENCE: Load = Load::Https64;

    /// Its name on the command line and in the tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Streaming => "streaming",
            Self::PingPong => "ping-pong",
            Self::PingPongRate => "ping-pong-rate",
            Self::Connections => "connections",
            Self::BulkUp => "bulk-up",
            Self::BulkDown => "bulk-down",
            Self::Udp64 => "udp-64",
            Self::Udp1400 => "udp-1400",
            Self::Idle => "idle",
            Self::Https10 => "https-10",
            Self::Https64 => "https-64",
            Self::HttpsRate => "https-rate",
            Self::HttpsStreams1 => "https-h2-1",
            Self::HttpsStreams10 => "https-h2-10",
            Self::HttpsStreams50 => "https-h2-50",
            Self::Handshakes => "handshakes",
            Self::HttpsIdle => "https-idle",
            Self::HttpsStacks => "https-stacks",
            Self::HostsPingPong => "hosts-ping-pong",
            Self::HostsPingPongRate => "hosts-ping-pong-rate",
            Self::HostsConnections => "hosts-connections",
            Self::HostsBulkUp => "hosts-bulk-up",
            Self::HostsBulkDown => "hosts-bulk-down",
        }
    }

    /// A short description.
    pub(crate) fn describe(self, scale: &Scale) -> String {
        let (connections, bulk) = (scale.connections, scale.bulk_connections);
        match self {
            Self::Streaming => format!(
                "{connections} connections, PROXY v1 header, then `PING\\r\\n` as fast as the socket takes it, echoed"
            ),
            Self::PingPong | Self::HostsPingPong => {
                format!("{connections} connections, 64 bytes there and 64 back, one at a time on each")
            }
            Self::PingPongRate | Self::HostsPingPongRate => format!(
                "{connections} connections, together {:.0} times a second 64 bytes there and 64 back, evenly spread; latency from when a \
                 request was due, sent or not",
                scale.ping_pong_rate
            ),
            Self::Connections | Self::HostsConnections => format!(
                "connect, header and one byte, the byte echoed, close; {connections} at a time, each from another client"
            ),
            Self::BulkUp | Self::HostsBulkUp => {
                format!("{bulk} connections, 128 KiB writes towards the backend")
            }
            Self::BulkDown | Self::HostsBulkDown => {
                format!("{bulk} connections, 128 KiB writes from the backend")
            }
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
            Self::HttpsStreams1 | Self::HttpsStreams10 | Self::HttpsStreams50 => format!(
                "{FEW} connections with HTTP/2, on each {} at a time, `GET /1kb` again and again; the origin has HTTP/1.1",
                match self.streams() {
                    1 => "one request".to_owned(),
                    streams => format!("{streams} requests"),
                }
            ),
            Self::Handshakes => format!(
                "connect, full handshake, `GET /1kb`, close; {connections} at a time, nothing resumed"
            ),
            Self::HttpsIdle => {
                format!("{} connections that have had one page each and then do nothing", scale.idle)
            }
            Self::HttpsStacks => format!(
                "{} connections kept alive, `GET /1kb` again and again on each; certificates verified at each hop",
                ON_STACKS
            ),
        }
    }

    /// The requests at a time on each connection of a load with HTTP/2; 1 for the others.
    pub(crate) const fn streams(self) -> usize {
        match self {
            Self::HttpsStreams10 => 10,
            Self::HttpsStreams50 => 50,
            _ => 1,
        }
    }

    /// Whether its clients speak HTTP/2.
    pub(crate) const fn is_http2(self) -> bool {
        matches!(self, Self::HttpsStreams1 | Self::HttpsStreams10 | Self::HttpsStreams50)
    }

    /// The size of a datagram without the header.
    pub(crate) const fn datagram_bytes(self) -> usize {
        if matches!(self, Self::Udp64) { 64 } else { 1400 }
    }

    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Udp64 | Self::Udp1400 => Transport::Udp,
            Self::Https10 | Self::Https64 | Self::HttpsRate | Self::Handshakes | Self::HttpsIdle => {
                Transport::Https
            }
            Self::HttpsStreams1 | Self::HttpsStreams10 | Self::HttpsStreams50 => Transport::Https,
            Self::HttpsStacks => Transport::Stacked,
            _ => Transport::Tcp,
        }
    }

    pub(crate) const fn suite(self) -> Suite {
        match self.transport() {
            Transport::Tcp if self.is_over_hosts() => Suite::Hosts,
            Transport::Tcp | Transport::Udp => Suite::Proxy,
            Transport::Https => Suite::Https,
            Transport::Stacked => Suite::Stacks,
        }
    }

    /// Whether load, contestant and backend are on hosts of their own.
    pub(crate) const fn is_over_hosts(self) -> bool {
        matches!(
            self,
            Self::HostsPingPong
                | Self::HostsPingPongRate
                | Self::HostsConnections
                | Self::HostsBulkUp
                | Self::HostsBulkDown
        )
    }

    /// The backend that it uses.
    pub(crate) const fn backend(self, origin: OriginKind) -> Kind {
        match self {
            Self::Streaming
            | Self::PingPong
            | Self::PingPongRate
            | Self::HostsPingPong
            | Self::HostsPingPongRate => Kind::Echo,
            Self::Connections | Self::HostsConnections | Self::Idle => Kind::EchoShort,
            Self::BulkUp | Self::HostsBulkUp => Kind::Sink,
            Self::BulkDown | Self::HostsBulkDown => Kind::Source,
            Self::Udp64 | Self::Udp1400 => Kind::Datagrams,
            Self::Https10
            | Self::Https64
            | Self::HttpsRate
            | Self::HttpsStreams1
            | Self::HttpsStreams10
            | Self::HttpsStreams50
            | Self::Handshakes
            | Self::HttpsIdle
            | Self::HttpsStacks => Kind::Origin(origin),
        }
    }

    /// The metric by which contestants are compared.
    pub(crate) const fn headline(self) -> Metric {
        match self {
            Self::Streaming | Self::BulkDown | Self::HostsBulkDown => Metric::DownMbps,
            Self::BulkUp | Self::HostsBulkUp => Metric::UpMbps,
            Self::PingPong | Self::HostsPingPong => Metric::Transactions,
            Self::PingPongRate | Self::HostsPingPongRate => Metric::P999,
            Self::Connections | Self::HostsConnections => Metric::Connections,
            Self::Udp64 | Self::Udp1400 => Metric::Echoed,
            Self::Idle | Self::HttpsIdle => Metric::Resident,
            Self::Https10 | Self::Https64 | Self::HttpsStacks => Metric::Requests,
            Self::HttpsStreams1 | Self::HttpsStreams10 | Self::HttpsStreams50 => Metric::Requests,
            Self::HttpsRate => Metric::P99,
            Self::Handshakes => Metric::Handshakes,
        }
    }

    /// All its metrics, in the order of its table.
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
            Self::PingPong | Self::HostsPingPong => {
                &[M::Transactions, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne]
            }
            Self::PingPongRate | Self::HostsPingPongRate => {
                &[M::Asked, M::Transactions, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne]
            }
            Self::Connections => {
                &[M::Connections, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne, M::TimeWait]
            }
            Self::HostsConnections => &[M::Connections, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
            Self::BulkUp | Self::HostsBulkUp => &[M::UpMbps, M::UpPackets, M::CpuSeconds, M::CpuPerGigabyte],
            Self::BulkDown | Self::HostsBulkDown => {
                &[M::DownMbps, M::DownPackets, M::CpuSeconds, M::CpuPerGigabyte]
            }
            Self::Udp64 | Self::Udp1400 => &[M::Echoed, M::Loss, M::CpuSeconds, M::CpuPerOne],
            Self::Idle | Self::HttpsIdle => &[M::Resident, M::Kernel, M::Descriptors],
            Self::Https10
            | Self::Https64
            | Self::HttpsStreams1
            | Self::HttpsStreams10
            | Self::HttpsStreams50 => &[M::Requests, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
            Self::HttpsRate => &[M::Asked, M::Requests, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
            Self::HttpsStacks => &[M::Requests, M::P50, M::P99, M::P999, M::CpuPerOne],
            Self::Handshakes => &[M::Handshakes, M::P50, M::P99, M::P999, M::CpuSeconds, M::CpuPerOne],
        }
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Load::ALL.map(Load::name).join(", ");
        Load::ALL
            .into_iter()
            .find(|load| load.name() == name)
            .ok_or_else(|| format!("expected proxy, hosts, https, stacks, or one of {}", names()))
    }
}
