//! The rules for a listener's sessions.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::{Dialect, HeaderReader, HeaderRule, HeaderTimes, Policy};
use truepeer_proto::Limits;

use crate::clients::PerClient;

/// A listener's id. Its owner chooses it; it is stable for the life of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(u16);

impl ListenerId {
    /// The id with this number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ListenerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// All rules of a listener's sessions. They are replaced as a whole: a session keeps the rules that it
/// started with.
#[derive(Debug, Clone)]
pub struct ListenerRules {
    /// How sessions are handled.
    pub settings: ListenerSettings,
    /// Who is admitted, who the client is, and the destination.
    pub policy: Arc<Policy>,
}

/// How one listener's sessions are handled.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// The address that senders connect to.
    pub address: SocketAddr,
    /// How many SO_REUSEPORT sockets to open. The kernel spreads connections over them. With 1, all workers
    /// share the socket.
    pub sockets: usize,
    /// IP_TRANSPARENT on the listener, for TPROXY.
    pub transparent: bool,
    /// IPV6_V6ONLY on the listener: another one has the port for IPv4.
    pub v6_only: bool,
    /// The firewall mark of upstream connections; 0: none.
    pub mark: u32,
    /// How long to wait for a header.
    pub header_times: HeaderTimes,
    /// The accepted headers and their longest length.
    pub header_limits: Limits,
    /// How long the backend may take to accept a connection.
    pub connect_timeout: Duration,
    /// The idle time-out, if neither direction moves bytes; `None`: none.
    pub idle_timeout: Option<Duration>,
    /// The limit of connections for one client.
    pub per_client: PerClient,
    /// When sessions leave user space; `None`: never.
    pub splice_after: Option<SpliceAfter>,
    /// Sessions that have left user space go on when truepeer stops.
    pub leaves_spliced: bool,
    /// The UDP settings, if the listener takes datagrams.
    pub udp: Option<UdpSettings>,
}

/// When a session is worth handing over to the kernel's programs: whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpliceAfter {
    /// The sessions' packets have a mark of the operator's, which translated ones would not have. So they
    /// stay, and are counted.
    pub is_marked: bool,
    /// Bytes in both directions together.
    pub bytes: u64,
    /// The age at which bytes still move.
    pub age: Duration,
}

/// The settings of a UDP listener.
#[derive(Debug, Clone)]
pub struct UdpSettings {
    /// The dialect.
    pub dialect: Dialect,
    /// A flow is forgotten after this silence: of both ends, or where datagrams are bare, of the sender
    /// alone.
    pub silence: Duration,
    /// The header for the backend, instead of the client's address; `None`: the client's address.
    pub sending: Option<Dialect>,
}

impl ListenerSettings {
    /// How the first bytes of a sender with this rule are interpreted.
    #[must_use]
    pub fn header_reader(&self, rule: HeaderRule) -> HeaderReader {
        HeaderReader { rule, limits: self.header_limits, times: self.header_times }
    }

    /// The setting that sockets opened with `others` can't provide, if any.
    #[must_use]
    pub fn needs_other_sockets(&self, others: &Self) -> Option<&'static str> {
        let dialect = |settings: &Self| settings.udp.as_ref().map(|udp| udp.dialect);
        // The dialect determines how the kernel spreads datagrams over the workers.
        [
            ("address", self.address != others.address),
            ("number of sockets", self.sockets != others.sockets),
            ("transparency", self.transparent != others.transparent),
            ("family", self.v6_only != others.v6_only),
            ("protocol or UDP dialect", dialect(self) != dialect(others)),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
    }

    /// A listener on `address` with the command line's defaults.
    #[must_use]
    pub fn on(address: SocketAddr) -> Self {
        Self {
            address,
            sockets: 1,
            transparent: false,
            v6_only: false,
            mark: 0,
            header_times: HeaderTimes::default(),
            header_limits: Limits::default(),
            connect_timeout: Duration::from_secs(5),
            idle_timeout: None,
            per_client: PerClient::unlimited(),
            splice_after: None,
            leaves_spliced: false,
            udp: None,
        }
    }
}
