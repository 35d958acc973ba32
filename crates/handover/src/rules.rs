//! The settings in the form in which they are applied.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use truepeer_policy::{
    BackendAddr, Backends, HeaderReader, HeaderRule, HeaderTimes, HostAddresses, Policy, Refusal, SenderAddr,
};
use truepeer_proto::Limits;

use crate::settings::{Destination, Listeners, RunSettings};

/// The rules of a supervised program. All its threads share them; they never change.
#[derive(Debug, Clone)]
pub struct RunRules {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    times: HeaderTimes,
    /// Some senders may send a header or none.
    pub has_optional: bool,
    /// The program's listeners to which the rules apply.
    pub listeners: Listeners,
    /// The answer of `getsockname`.
    pub destination: Destination,
}

impl RunRules {
    /// Carries the settings out.
    pub fn new(settings: RunSettings) -> Self {
        let (senders, has_optional) = (settings.senders(), settings.has_optional());
        // Destinations are not checked: the application already has the connection.
        let nowhere = BackendAddr::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let mut policy = Policy::to(Backends::both(nowhere, nowhere));
        policy.senders = senders;
        policy.claims = settings.claims;
        policy.claims.host = HostAddresses::new(truepeer_sys::host::is_own_address_once);
        Self {
            policy,
            limits: settings.limits,
            times: settings.header_times,
            has_optional,
            listeners: settings.listeners,
            destination: settings.destination,
        }
    }

    /// Sets the function that checks whether an address belongs to this host.
    #[must_use]
    pub fn asking(mut self, is_own_address: fn(IpAddr) -> bool) -> Self {
        self.policy.claims.host = HostAddresses::new(is_own_address);
        self
    }

    /// How this sender's first bytes are read.
    ///
    /// # Errors
    /// The sender may not connect.
    pub(crate) fn reader(&self, sender: SenderAddr) -> Result<HeaderReader, Refusal> {
        let rule = self.policy.admit(sender)?;
        Ok(HeaderReader { rule, limits: self.limits, times: self.times })
    }

    /// How long after accept() a connection with this many bytes is decided. A connection that needs no
    /// header may be a wake-up whose word has not arrived.
    pub(crate) fn deadline(&self, sender: SenderAddr, received: usize) -> Duration {
        match self.reader(sender) {
            Ok(reader) if reader.rule != HeaderRule::Forbid => reader.deadline(received),
            _ => self.times.wait.min(self.times.timeout),
        }
    }
}
