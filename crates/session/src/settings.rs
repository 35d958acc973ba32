//! What a listener's sessions follow.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::{Dialect, HeaderReader, HeaderRule, HeaderTimes, Policy};
use truepeer_proto::Limits;

/// A listener's name, which its owner gives it: stable for as long as the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(u16);

impl ListenerId {
    /// The listener that its owner numbers so.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }
}

impl fmt::Display for ListenerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// All that a listener's sessions follow. Swapped as a whole: a session keeps the rules that it began with.
#[derive(Debug, Clone)]
pub struct ListenerRules {
    /// How sessions are handled.
    pub settings: ListenerSettings,
    /// Whose sessions they are and where they go.
    pub policy: Arc<Policy>,
}

/// How one listener's sessions are handled.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// Where senders connect to.
    pub address: SocketAddr,
    /// SO_REUSEPORT sockets to open, over which the kernel spreads connections; 1 is shared among all workers.
    pub sockets: usize,
    /// IP_TRANSPARENT on the listener, for TPROXY.
    pub transparent: bool,
    /// Firewall mark of upstream connections; 0 is none.
    pub mark: u32,
    /// How long a header is waited for.
    pub header_times: HeaderTimes,
    /// What a header may look like and how long it may be.
    pub header_limits: Limits,
    /// How long the backend may take to accept a connection.
    pub connect_timeout: Duration,
    /// Sessions are ended after such a silence in both directions; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Set: the listener takes datagrams.
    pub udp: Option<UdpSettings>,
}

/// What only a UDP listener needs.
#[derive(Debug, Clone)]
pub struct UdpSettings {
    /// Where the header is.
    pub dialect: Dialect,
    /// A flow is forgotten after such a silence: of both ends, or where datagrams are bare of the sender alone.
    pub silence: Duration,
    /// The header in front of what goes to the backend, instead of the client's address; `None`: the client's address.
    pub sending: Option<Dialect>,
}

impl ListenerSettings {
    /// How the first bytes of a sender with this rule are read.
    #[must_use]
    pub fn header_reader(&self, rule: HeaderRule) -> HeaderReader {
        HeaderReader { rule, limits: self.header_limits, times: self.header_times }
    }

    /// What of these settings the sockets of a listener that is open with `others` can't follow.
    #[must_use]
    pub fn needs_other_sockets(&self, others: &Self) -> Option<&'static str> {
        let dialect = |settings: &Self| settings.udp.as_ref().map(|udp| udp.dialect);
        // The dialect decides how the kernel spreads datagrams over the workers.
        [
            ("address", self.address != others.address),
            ("number of sockets", self.sockets != others.sockets),
            ("transparency", self.transparent != others.transparent),
            ("protocol or UDP dialect", dialect(self) != dialect(others)),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
    }

    /// A listener on `address` with every default of the command line.
    #[must_use]
    pub fn on(address: SocketAddr) -> Self {
        Self {
            address,
            sockets: 1,
            transparent: false,
            mark: 0,
            header_times: HeaderTimes::default(),
            header_limits: Limits::default(),
            connect_timeout: Duration::from_secs(5),
            idle_timeout: None,
            udp: None,
        }
    }
}
