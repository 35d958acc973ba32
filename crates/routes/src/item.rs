//! The things that a plan is made of: rules, local routes and sysctls.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// The IP family of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both, in the order in which they are printed.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `127.0.0.1` or `::1`.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The address that stands for a client in the doctor's probes (documentation: RFC 5737, RFC 3849).
    pub fn example_client(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        }
    }
}

/// The transport that a rule selects on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpTransport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The table of this host's ordinary routes.
pub const TABLE_MAIN: u32 = 254;

/// A policy routing rule. The kernel ignores selectors that are `None` or `false`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The family whose rule list holds it.
    pub family: IpFamily,
    /// The packet's source.
    pub from: Option<IpNet>,
    /// Only packets that this machine sends itself (the kernel's meaning of `iif lo` in a rule).
    pub sent_here: bool,
    /// The packet's mark, all 32 bits of it.
    pub mark: Option<u32>,
    /// The packet's transport.
    pub transport: Option<IpTransport>,
    /// The packet's source ports.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The table to look up.
    pub table: u32,
}

impl Rule {
    /// A rule that selects everything, to be narrowed.
    pub fn to_table(family: IpFamily, table: u32) -> Self {
        Self { family, from: None, sent_here: false, mark: None, transport: None, source_ports: None, table }
    }

    /// Whether both select the same packets for the same table (the kernel compares prefixes masked).
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let masked = |rule: &Self| Self { from: rule.from.map(|net| net.trunc()), ..rule.clone() };
        masked(self) == masked(other)
    }
}

/// `local default dev lo table T`: the kernel takes every address looked up in this table for its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRoute {
    /// Which default.
    pub family: IpFamily,
    /// The table that it stands in.
    pub table: u32,
    /// The source that an unbound UDP socket shall reply from.
    pub source: Option<IpAddr>,
}

/// The kernel switches that a plan may need. All are per network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// An accepted TCP socket takes the mark of the SYN; serves IPv6, too, whatever its name says.
    TcpFwmarkAccept,
    /// A RST or ICMP reply that belongs to no socket takes the mark of the packet it answers (IPv4).
    FwmarkReflect4,
    /// The same for IPv6.
    FwmarkReflect6,
}

impl Switch {
    /// All of them; the position is what a memo in the kernel's rule list refers to, so only append.
    pub const ALL: [Self; 3] = [Self::TcpFwmarkAccept, Self::FwmarkReflect4, Self::FwmarkReflect6];

    /// The dotted name that sysctl(8) knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::TcpFwmarkAccept => "net.ipv4.tcp_fwmark_accept",
            Self::FwmarkReflect4 => "net.ipv4.fwmark_reflect",
            Self::FwmarkReflect6 => "net.ipv6.fwmark_reflect",
        }
    }
}

/// One setting that the kernel must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// A rule of this meaning, at whatever priority.
    Rule(Rule),
    /// A local default route.
    LocalRoute(LocalRoute),
    /// A switch that must be 1.
    Switch(Switch),
}

impl Need {
    /// The need does not apply without this IP family. `TcpFwmarkAccept` exists with IPv4 alone.
    pub(crate) fn family(&self) -> IpFamily {
        match self {
            Self::Rule(rule) => rule.family,
            Self::LocalRoute(route) => route.family,
            Self::Switch(Switch::FwmarkReflect6) => IpFamily::V6,
            Self::Switch(_) => IpFamily::V4,
        }
    }
}

/// A need and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What must be so.
    pub need: Need,
    /// The reason, as the operator reads it.
    pub why: &'static str,
}
