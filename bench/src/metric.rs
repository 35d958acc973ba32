//! The metrics: names, units, and the form of values.

/// One measured quantity of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// Both directions together, Mbit/s: the seeds' ⇅.
    BothMbps,
    /// Received by the load, Mbit/s.
    DownMbps,
    /// Sent by the load, Mbit/s.
    UpMbps,
    /// Reads as packets a second, estimated as tcpkali does.
    DownPackets,
    /// Writes as packets a second, estimated in the same way.
    UpPackets,
    /// Answered requests a second.
    Transactions,
    /// Connections opened, answered and closed a second.
    Connections,
    /// Scheduled requests a second.
    Asked,
    /// Requests answered with the right page a second.
    Requests,
    /// Connections opened with a full handshake, answered and closed a second.
    Handshakes,
    /// Median time to the answer, µs.
    P50,
    /// 99th percentile of it, µs.
    P99,
    /// 99.9th percentile of it, µs.
    P999,
    /// Echoed datagrams a second.
    Echoed,
    /// Datagrams without an echo, % of those sent.
    Loss,
    /// CPU time of the contestant in the window, s.
    CpuSeconds,
    /// CPU time of the contestant for 10⁹ bytes (both directions counted), s.
    CpuPerGigabyte,
    /// CPU time of the contestant for one transaction, connection or datagram, µs.
    CpuPerOne,
    /// Sockets in TIME_WAIT at the end.
    TimeWait,
    /// Resident memory of the contestant for one idle session, KiB.
    Resident,
    /// Kernel memory of all parties for one idle session, KiB.
    Kernel,
    /// Descriptors of the contestant for one idle session.
    Descriptors,
}

impl Metric {
    /// The heading of its column.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::BothMbps => "⇅ Mbps",
            Self::DownMbps => "↓ Mbps",
            Self::UpMbps => "↑ Mbps",
            Self::DownPackets => "↓ pkt/s",
            Self::UpPackets => "↑ pkt/s",
            Self::Transactions => "transactions/s",
            Self::Connections => "connections/s",
            Self::Asked => "asked/s",
            Self::Requests => "requests/s",
            Self::Handshakes => "handshakes/s",
            Self::P50 => "p50 µs",
            Self::P99 => "p99 µs",
            Self::P999 => "p99.9 µs",
            Self::Echoed => "echoed/s",
            Self::Loss => "loss %",
            Self::CpuSeconds => "CPU s",
            Self::CpuPerGigabyte => "CPU s/GB",
            Self::CpuPerOne => "CPU µs/each",
            Self::TimeWait => "TIME_WAIT",
            Self::Resident => "RSS KiB",
            Self::Kernel => "kernel KiB (all parties)",
            Self::Descriptors => "descriptors",
        }
    }

    /// Whether it describes the contestant alone, so that "no proxy" has no value.
    pub(crate) const fn is_contestants_own(self) -> bool {
        matches!(
            self,
            Self::CpuSeconds | Self::CpuPerGigabyte | Self::CpuPerOne | Self::Resident | Self::Descriptors
        )
    }

    /// Whether a smaller value is the better one.
    pub(crate) const fn is_better_low(self) -> bool {
        match self {
            Self::BothMbps
            | Self::DownMbps
            | Self::UpMbps
            | Self::DownPackets
            | Self::UpPackets
            | Self::Transactions
            | Self::Connections
            | Self::Asked
            | Self::Requests
            | Self::Handshakes
            | Self::Echoed => false,
            Self::P50
            | Self::P99
            | Self::P999
            | Self::Loss
            | Self::CpuSeconds
            | Self::CpuPerGigabyte
            | Self::CpuPerOne
            | Self::TimeWait
            | Self::Resident
            | Self::Kernel
            | Self::Descriptors => true,
        }
    }

    /// The value with its significant digits.
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Self::CpuSeconds | Self::CpuPerGigabyte | Self::CpuPerOne | Self::Resident | Self::Kernel => {
                format!("{value:.2}")
            }
            Self::Loss => format!("{value:.1}"),
            Self::Descriptors => format!("{value:.1}"),
            _ => format!("{value:.0}"),
        }
    }
}

/// The results of one cell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    values: Vec<(Metric, f64)>,
    /// Faults in the bytes or sessions, in words.
    pub(crate) flaws: Vec<String>,
}

impl Sample {
    pub(crate) fn put(&mut self, metric: Metric, value: f64) {
        self.values.push((metric, value));
    }

    pub(crate) fn flaw(&mut self, text: impl Into<String>) {
        self.flaws.push(text.into());
    }

    /// The value; `None` if this cell didn't measure it.
    pub(crate) fn value(&self, metric: Metric) -> Option<f64> {
        self.values.iter().find(|(own, _)| *own == metric).map(|(_, value)| *value)
    }
}
