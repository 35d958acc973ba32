//! Tests that run once by IPv4 and once by IPv6.

use anyhow::Result;
use truepeer_testbed::{Bed, Test};

/// Sender, client, listener and backend are of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address with a port.
    pub(crate) fn of(address: &str) -> Family {
        if address.starts_with('[') { Family::V6 } else { Family::V4 }
    }

    pub(crate) fn pick<T>(self, v4: T, v6: T) -> T {
        match self {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// The listener for senders of another host.
    pub(crate) fn listener(self) -> &'static str {
        self.pick(crate::wire::DOOR, "[fd78:9::1]:8443")
    }

    /// The listener for senders of this host.
    pub(crate) fn listener_here(self) -> &'static str {
        self.pick(crate::stand::DOOR, "[::1]:8443")
    }

    /// The backend on this host.
    pub(crate) fn backend(self) -> &'static str {
        self.pick(crate::stand::BACKEND, "[::1]:8000")
    }

    /// The client of this number, as the backend sees it.
    pub(crate) fn client(self, number: u16) -> String {
        format!("{}:{}", self.pick("203.0.113.7", "[2001:db8::7]"), 5000 + number)
    }

    pub(crate) fn site(self) -> &'static str {
        self.pick(crate::stand::SITE, "[2001:db8:1::1]:443")
    }

    /// A command of `ip` about routing rules of this family.
    pub(crate) fn rule(self, command: &str) -> String {
        self.pick(format!("rule {command}"), format!("-6 rule {command}"))
    }
}

/// The test under this name, and once more by IPv6.
pub(crate) fn in_both(
    name: &str,
    test: impl Fn(&Bed, Family) -> Result<()> + Clone + Send + 'static,
) -> [Test; 2] {
    Family::BOTH.map(|family| {
        let (name, test) = (format!("{name}{}", family.pick("", "_by_ipv6")), test.clone());
        Test::new(name, move |bed: &Bed| test(bed, family))
    })
}
