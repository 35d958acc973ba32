//! Which destinations in headers are permitted (`--dynamic-destination`).

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::str::FromStr;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;

use crate::addr::{BackendAddr, ClientAddr};
use crate::claims::SpecialRange;
use crate::prefixes::{PrefixSet, host, parse_prefix};
use crate::refusal::{Refusal, UnusableDestination};

/// Ports; empty means all.
type Ports = Vec<RangeInclusive<u16>>;

/// Destinations by prefix and port (`--dynamic-allow PREFIX[:PORTS]`). Empty by default: none is permitted.
#[derive(Clone, Default)]
pub struct Destinations(JointPrefixMap<IpNet, Vec<Ports>>);

/// Text that is not a set of destinations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DestinationsError {
    /// The part before the ports.
    #[error(
        "{0:?} is not PREFIX[:PORTS]: expected loopback, private, any, an address or a prefix, such as 10.0.0.0/8:80,8000-8100 or [2001:db8::/32]:443"
    )]
    Prefix(String),
    /// The part after the colon.
    #[error(
        "{0:?} is not a list of ports: expected N, N-M or several with commas, 1 to 65535, such as 80,8000-8100"
    )]
    Ports(String),
}

impl Destinations {
    /// Everywhere.
    pub fn any() -> Self {
        let mut all = Self::default();
        all.add(&PrefixSet::any(), Vec::new());
        all
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        for (prefix, entries) in &other.0 {
            self.entries(prefix).extend(entries.iter().cloned());
        }
    }

    /// Every prefix with each of its ranges of ports; all ports are `0..=65535`.
    pub fn iter(&self) -> impl Iterator<Item = (IpNet, RangeInclusive<u16>)> + '_ {
        self.0.iter().flat_map(|(prefix, entries)| {
            entries.iter().flat_map(move |ports| {
                let all = ports.is_empty().then_some(0..=u16::MAX);
                ports.iter().cloned().chain(all).map(move |range| (prefix, range))
            })
        })
    }

    /// Whether no destination is permitted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any entry, wider or narrower, has the address and its port.
    pub fn contains(&self, destination: SocketAddr) -> bool {
        let has_port =
            |ports: &Ports| ports.is_empty() || ports.iter().any(|range| range.contains(&destination.port()));
        self.0.cover(&host(destination.ip())).any(|(_, entries)| entries.iter().any(has_port))
    }

    fn add(&mut self, prefixes: &PrefixSet, ports: Ports) {
        for prefix in prefixes.iter() {
            self.entries(prefix).push(ports.clone());
        }
    }

    fn entries(&mut self, prefix: IpNet) -> &mut Vec<Ports> {
        self.0.entry(prefix).or_default()
    }
}

impl FromStr for Destinations {
    type Err = DestinationsError;

    fn from_str(text: &str) -> Result<Self, DestinationsError> {
        let (prefix, ports) = split_ports(text);
        let prefixes = prefix.parse().map_err(|_| DestinationsError::Prefix(text.to_owned()))?;
        let mut destinations = Self::default();
        destinations.add(&prefixes, ports.map_or(Ok(Vec::new()), parse_ports)?);
        Ok(destinations)
    }
}

/// `PREFIX:PORTS`, `[PREFIX]:PORTS`, or a prefix alone: an IPv6 one is recognised by being one as a whole.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    if let Some((prefix, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(ports) => (prefix, Some(ports)),
            None if rest.is_empty() => (prefix, None),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        Some((prefix, ports)) if parse_prefix(text).is_none() && !prefix.contains(':') => {
            (prefix, Some(ports))
        }
        _ => (text, None),
    }
}

fn parse_ports(text: &str) -> Result<Ports, DestinationsError> {
    text.split(',')
        .map(parse_range)
        .collect::<Option<_>>()
        .ok_or_else(|| DestinationsError::Ports(text.to_owned()))
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first > 0 && first <= last).then_some(first..=last)
}

/// The entries as they are read, separated by spaces.
impl fmt::Display for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries =
            self.0.iter().flat_map(|(prefix, entries)| entries.iter().map(move |ports| (prefix, ports)));
        for (index, (prefix, ports)) in entries.enumerate() {
            f.write_str(if index > 0 { " " } else { "" })?;
            match prefix {
                _ if ports.is_empty() => prefix.fmt(f)?,
                IpNet::V4(prefix) => write!(f, "{prefix}:{}", PortList(ports))?,
                IpNet::V6(prefix) => write!(f, "[{prefix}]:{}", PortList(ports))?,
            }
        }
        Ok(())
    }
}

struct PortList<'a>(&'a Ports);

impl fmt::Display for PortList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match (range.start(), range.end()) {
                (first, last) if first == last => first.fmt(f)?,
                (first, last) => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destinations({self})")
    }
}

impl PartialEq for Destinations {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(other.0.iter())
    }
}

impl Eq for Destinations {}

/// The rules for sessions whose header names their destination.
#[derive(Debug, Clone, Default)]
pub struct Dynamic {
    /// The permitted destinations.
    pub allow: Destinations,
}

impl Dynamic {
    pub(crate) fn check(&self, client: ClientAddr, destination: BackendAddr) -> Result<(), Refusal> {
        let unusable = |why| Refusal::DestinationUnusable { client, destination, why };
        if destination.get().port() == 0 {
            return Err(unusable(UnusableDestination::PortZero));
        }
        match SpecialRange::of(destination.ip()) {
            // Linux connects to this host for 0.0.0.0 and ::, so they must not count as foreign addresses.
            None | Some(SpecialRange::Loopback | SpecialRange::ClassE) => {}
            Some(range) => return Err(unusable(UnusableDestination::Special(range))),
        }
        if !self.allow.contains(destination.get()) {
            return Err(Refusal::DestinationNotAllowed { client, destination });
        }
        Ok(())
    }
}

/// Whether a destination may be one of truepeer's listeners.
pub(crate) fn reaches(listener: SocketAddr, destination: BackendAddr) -> bool {
    let bound = BackendAddr::new(listener);
    bound == destination
        || (bound.get().port() == destination.get().port() && is_wildcard_for(bound.ip(), destination.ip()))
}

/// `::` also accepts IPv4 connections unless IPV6_V6ONLY is set. Assume that it does.
fn is_wildcard_for(bound: IpAddr, destination: IpAddr) -> bool {
    bound.is_unspecified() && (bound.is_ipv6() || destination.is_ipv4())
}
