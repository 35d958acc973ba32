//! Loads that are compared with each other. Each suite has its contestants, its summary and its page.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// A PROXY header, then any protocol.
    Proxy,
    /// The same over TCP, each party on a host of its own.
    Hosts,
    /// HTTPS in, HTTPS out.
    Https,
    /// The same, on the kernel's network stack and on VPP's.
    Stacks,
}

impl Suite {
    pub(crate) const ALL: [Suite; 4] = [Suite::Proxy, Suite::Hosts, Suite::Https, Suite::Stacks];

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Hosts => "hosts",
            Self::Https => "https",
            Self::Stacks => "stacks",
        }
    }
}
