//! The settings, ready to be asked.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use truepeer_policy::{
    BackendAddr, Backends, HeaderReader, HeaderRule, HeaderTimes, HostAddresses, Policy, Refusal, SenderAddr,
};
use truepeer_proto::Limits;

use crate::{Destination, Listeners, RunSettings};

/// The rules of a program that is run; shared by all its threads, never changed.
#[derive(Debug, Clone)]
pub struct RunRules {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    times: HeaderTimes,
    /// Which of the program's listeners are meant.
    pub listeners: Listeners,
    /// What `getsockname` answers.
    pub destination: Destination,
}

impl RunRules {
    /// Carries the settings out.
    pub fn new(settings: RunSettings) -> Self {
        let senders = settings.senders();
        // Where sessions go is not asked: the application has the connection already.
        let nowhere = BackendAddr::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let mut policy = Policy::to(Backends::both(nowhere, nowhere));
        policy.senders = senders;
        policy.claims = settings.claims;
        policy.claims.host = HostAddresses::new(truepeer_sys::host::is_own_address_once);
        Self {
            policy,
            limits: settings.limits,
            times: settings.header_times,
            listeners: settings.listeners,
            destination: settings.destination,
        }
    }

    /// Asks this way whether an address is one of this host's.
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

    /// When a connection of which so many bytes have come is decided on: so long after it was accepted. One that needs no
    /// header may be a wake-up, whose word is about to come.
    pub(crate) fn deadline(&self, sender: SenderAddr, received: usize) -> Duration {
        match self.reader(sender) {
            Ok(reader) if reader.rule != HeaderRule::Forbid => reader.deadline(received),
            _ => self.times.wait.min(self.times.timeout),
        }
    }
}
