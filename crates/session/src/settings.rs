//! What a listener's sessions follow, besides the policy.

use std::net::SocketAddr;
use std::time::Duration;

use truepeer_policy::{Dialect, HeaderReader, HeaderRule, HeaderTimes};
use truepeer_proto::Limits;

/// One TCP listener.
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
