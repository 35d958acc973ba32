//! The settings, ready to be asked.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use truepeer_policy::{BackendAddr, Backends, HeaderRule, HostAddresses, Policy, SenderAddr};
use truepeer_proto::Limits;

use crate::{Destination, Listeners, Settings};

/// How long a connection that need not have a header is held back for one: its client may be waiting for the
/// application to speak first.
const OPTIONAL_WAIT: Duration = Duration::from_secs(1);

/// The rules of a program that is run; shared by all its threads, never changed.
#[derive(Debug, Clone)]
pub struct Rules {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    header_timeout: Duration,
    /// Which of the program's listeners are meant.
    pub listeners: Listeners,
    /// What `getsockname` answers.
    pub destination: Destination,
}

impl Rules {
    /// Carries the settings out.
    pub fn new(settings: Settings) -> Self {
        let senders = settings.senders();
        // Where sessions go is not asked: the application has the connection already.
        let nowhere = BackendAddr::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let mut policy = Policy::to(Backends { ipv4: nowhere, ipv6: nowhere });
        policy.senders = senders;
        policy.claims = settings.claims;
        policy.claims.host = HostAddresses::new(truepeer_sys::host::is_own_address_once);
        Self {
            policy,
            limits: settings.limits,
            header_timeout: settings.header_timeout,
            listeners: settings.listeners,
            destination: settings.destination,
        }
    }

    /// How long a sender may take for its header.
    pub fn patience(&self, sender: SenderAddr) -> Duration {
        match self.policy.admit(sender) {
            Ok(HeaderRule::Optional) => self.header_timeout.min(OPTIONAL_WAIT),
            _ => self.header_timeout,
        }
    }
}
