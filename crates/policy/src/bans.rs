//! Clients that are banned while the program runs: the deny-list's sibling that changes at any moment.
//!
//! One table serves all listeners of a process. Its owner adds bans, lifts them, and calls [`Bans::expire`]
//! with the time; a look-up knows no time, and costs one atomic load while nobody is banned.

use core::net::{IpAddr, Ipv4Addr};
use core::num::NonZeroU16;
use core::str::FromStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ipnet::IpNet;

use crate::addr::ClientAddr;
use crate::claims::{SpecialRange, without_nat64};
use crate::prefixes::parse_prefix;

/// Whom a ban is for: a prefix in canonical form. An IPv4-mapped address, and one under the well-known NAT64
/// prefix, is its IPv4 address. It is never a whole family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BannedPrefix(IpNet);

/// Text that nobody can be banned by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BannedPrefixError {
    /// Not an address or prefix.
    #[error("{0:?} is not a client: expected an address, or a prefix such as 192.0.2.0/24 or 2001:db8::/32")]
    NotAPrefix(String),
    /// A prefix without bits.
    #[error("{0} has every address of its family: that would ban everybody; expected a longer prefix")]
    Everybody(String),
    /// An IPv6 prefix with IPv4 addresses in it.
    #[error("{0} has the IPv4-mapped addresses, which no IPv6 client has: expected a longer prefix")]
    Mapped(String),
    /// Addresses that `--pseudo-ipv4` gives to IPv6 clients.
    #[error(
        "{0} is of class E: no client has it, but IPv6 clients can be shown so; expected the IPv6 address, which truepeer whois ADDRESS tells"
    )]
    StandIn(String),
    /// Addresses that no client has.
    #[error("{0} is {1}, which no client has")]
    Nobody(String, SpecialRange),
}

impl BannedPrefix {
    /// The prefix.
    #[must_use]
    pub fn net(self) -> IpNet {
        self.0
    }
}

impl FromStr for BannedPrefix {
    type Err = BannedPrefixError;

    fn from_str(text: &str) -> Result<Self, BannedPrefixError> {
        let Some(net) = parse_prefix(text) else {
            return Err(BannedPrefixError::NotAPrefix(text.to_owned()));
        };
        let net = match (net, without_nat64(net.addr())) {
            (IpNet::V6(v6), IpAddr::V4(ip)) if v6.prefix_len() >= 96 => {
                IpNet::new(ip.into(), v6.prefix_len() - 96).map_or(net, |net| net.trunc())
            }
            _ => net,
        };
        if net.prefix_len() == 0 {
            return Err(BannedPrefixError::Everybody(text.to_owned()));
        }
        if matches!(net, IpNet::V6(v6) if v6.contains(&Ipv4Addr::UNSPECIFIED.to_ipv6_mapped())) {
            return Err(BannedPrefixError::Mapped(text.to_owned()));
        }
        match SpecialRange::of(net.addr()) {
            Some(SpecialRange::ClassE) => Err(BannedPrefixError::StandIn(text.to_owned())),
            Some(range @ (SpecialRange::Multicast | SpecialRange::Broadcast | SpecialRange::Unspecified))
                if net.prefix_len() == net.max_prefix_len() =>
            {
                Err(BannedPrefixError::Nobody(text.to_owned(), range))
            }
            _ => Ok(Self(net)),
        }
    }
}

/// As it is typed: an address without a length.
impl core::fmt::Display for BannedPrefix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

/// A ban. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ban {
    /// Whom it is for.
    pub clients: BannedPrefix,
    /// The listeners' port that it is for; `None`: every port.
    pub port: Option<NonZeroU16>,
    /// When it was set.
    pub since: u64,
    /// When it ends; `None`: when it is lifted.
    pub until: Option<u64>,
    /// The user who set it.
    pub by: Option<u32>,
    /// What that user said.
    pub why: Arc<str>,
}

impl Ban {
    /// Whether this ban stays where `new` would take its place: it has another reason and ends later. So two
    /// who ban the same client do not lift each other's ban.
    #[must_use]
    pub fn outlasts(&self, new: &Self) -> bool {
        outlasts((&self.why, self.until), new)
    }
}

fn outlasts((why, until): (&str, Option<u64>), new: &Ban) -> bool {
    *why != *new.why && new.until.is_some_and(|end| until.is_none_or(|until| until > end))
}

/// Which bans of a client are lifted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lifted<'a> {
    /// Those for this port; `None`: those for all ports and for each.
    pub port: Option<NonZeroU16>,
    /// Those with this reason; `None`: with any.
    pub why: Option<&'a str>,
}

/// There would be more bans than [`Bans::MOST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there would be {0} bans; {most} is the most, and none of these was set: ban prefixes, or for a shorter time", most = Bans::MOST)]
pub struct TooManyBans(usize);

/// Everybody who is banned at the moment.
#[derive(Debug, Default)]
pub struct Bans {
    /// How many there are, so that nobody takes the lock for nothing.
    count: AtomicUsize,
    table: RwLock<Table>,
}

type Key = (BannedPrefix, Option<NonZeroU16>);

#[derive(Debug)]
struct Terms {
    since: u64,
    until: Option<u64>,
    by: Option<u32>,
    why: Arc<str>,
}

/// What look-ups have to try: a family's prefix length, with a port or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    is_ipv6: bool,
    len: u8,
    has_port: bool,
}

#[derive(Debug, Default)]
struct Table {
    bans: HashMap<Key, Terms>,
    /// Each shape that is there, and how often. There are few: most bans are of single addresses.
    shapes: Vec<(Shape, usize)>,
    /// The bans for one port again, so that nobody searches all bans for them with the lock held.
    at_ports: BTreeSet<(BannedPrefix, NonZeroU16)>,
    expiries: BTreeSet<(u64, Key)>,
}

impl Bans {
    /// The most bans at a time. A million addresses take about 170 MB.
    pub const MOST: usize = 1 << 20;

    /// Sets all of these, or none. One that is there already gets the new terms, unless it
    /// [outlasts](Ban::outlasts) the new one. Returns how many have the new terms.
    ///
    /// # Errors
    /// There would be too many.
    pub fn set(&self, bans: Vec<Ban>) -> Result<usize, TooManyBans> {
        let (mut table, mut set) = (self.write(), 0);
        if table.bans.len() + bans.len() > Self::MOST {
            let keys: BTreeSet<Key> = bans.iter().map(|ban| (ban.clients, ban.port)).collect();
            let new = keys.iter().filter(|key| !table.bans.contains_key(key)).count();
            if table.bans.len() + new > Self::MOST {
                return Err(TooManyBans(table.bans.len() + new));
            }
        }
        for ban in bans {
            let key = (ban.clients, ban.port);
            if !table.bans.get(&key).is_some_and(|terms| outlasts((&terms.why, terms.until), &ban)) {
                let Ban { since, until, by, why, .. } = ban;
                table.insert(key, Terms { since, until, by, why });
                set += 1;
            }
        }
        self.count.store(table.bans.len(), Ordering::Release);
        Ok(set)
    }

    /// Lifts the bans of exactly this prefix. Returns how many there were.
    pub fn lift(&self, clients: BannedPrefix, which: Lifted<'_>) -> usize {
        let mut table = self.write();
        let mut keys = vec![(clients, which.port)];
        if which.port.is_none() {
            keys.extend(table.ports_of(clients).map(|port| (clients, Some(port))));
        }
        if let Some(why) = which.why {
            keys.retain(|key| table.bans.get(key).is_some_and(|terms| *terms.why == *why));
        }
        let lifted = keys.iter().filter(|key| table.remove(key)).count();
        self.count.store(table.bans.len(), Ordering::Release);
        lifted
    }

    /// Lifts all. Returns how many there were.
    pub fn clear(&self) -> usize {
        let mut table = self.write();
        let lifted = std::mem::take(&mut *table);
        self.count.store(0, Ordering::Release);
        drop(table);
        // Freeing a million bans takes a while, and needs no lock.
        lifted.bans.len()
    }

    /// Lifts those whose time is over. Returns how many there were.
    pub fn expire(&self, now: u64) -> usize {
        let mut table = self.write();
        let mut expired = 0;
        while let Some((until, key)) = table.expiries.first().copied().filter(|(until, _)| *until <= now) {
            table.remove(&key);
            // Also if it was not there: this must end.
            table.expiries.remove(&(until, key));
            expired += 1;
        }
        self.count.store(table.bans.len(), Ordering::Release);
        expired
    }

    /// When the next ban ends by itself.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        self.read().expiries.first().map(|(until, _)| *until)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether nobody is banned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a client is banned from a listener's port.
    #[must_use]
    pub fn has(&self, client: ClientAddr, port: u16) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let (table, ip) = (self.read(), without_nat64(client.ip()));
        table.shapes.iter().any(|(shape, _)| {
            let port = if shape.has_port { NonZeroU16::new(port) } else { None };
            shape.is_ipv6 == ip.is_ipv6()
                && shape.has_port == port.is_some()
                && IpNet::new(ip, shape.len)
                    .is_ok_and(|net| table.bans.contains_key(&(BannedPrefix(net.trunc()), port)))
        })
    }

    /// A ban around this prefix: of a wider one, for any port.
    #[must_use]
    pub fn wider(&self, clients: BannedPrefix) -> Option<BannedPrefix> {
        let table = self.read();
        let (net, is_ipv6) = (clients.0, clients.0.addr().is_ipv6());
        let shapes = table.shapes.iter().map(|(shape, _)| shape);
        let lens = shapes.filter(|shape| shape.is_ipv6 == is_ipv6 && shape.len < net.prefix_len());
        let mut around = lens.filter_map(|shape| {
            let around = BannedPrefix(IpNet::new(net.addr(), shape.len).ok()?.trunc());
            let is_there = if shape.has_port {
                table.ports_of(around).next().is_some()
            } else {
                table.bans.contains_key(&(around, None))
            };
            is_there.then_some(around)
        });
        around.next()
    }

    /// All of them, in no order.
    #[must_use]
    pub fn list(&self) -> Vec<Ban> {
        let table = self.read();
        let each = table.bans.iter().map(|((clients, port), terms)| Ban {
            clients: *clients,
            port: *port,
            since: terms.since,
            until: terms.until,
            by: terms.by,
            why: Arc::clone(&terms.why),
        });
        each.collect()
    }

    // Each change is complete before anything can panic, so a poisoned table is as good as any.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The ports that exactly this prefix is banned from, each by a ban of its own.
    fn ports_of(&self, clients: BannedPrefix) -> impl Iterator<Item = NonZeroU16> + '_ {
        let those = (clients, NonZeroU16::MIN)..=(clients, NonZeroU16::MAX);
        self.at_ports.range(those).map(|(_, port)| *port)
    }

    fn insert(&mut self, key: Key, terms: Terms) {
        let until = terms.until;
        match self.bans.insert(key, terms) {
            Some(before) => _ = before.until.is_some_and(|until| self.expiries.remove(&(until, key))),
            None => {
                self.at_ports.extend(key.1.map(|port| (key.0, port)));
                let shape = shape_of(key.0, key.1.is_some());
                match self.shapes.iter_mut().find(|(known, _)| *known == shape) {
                    Some((_, count)) => *count += 1,
                    None => self.shapes.push((shape, 1)),
                }
            }
        }
        if let Some(until) = until {
            self.expiries.insert((until, key));
        }
    }

    fn remove(&mut self, key: &Key) -> bool {
        let Some(terms) = self.bans.remove(key) else { return false };
        if let Some(until) = terms.until {
            self.expiries.remove(&(until, *key));
        }
        if let Some(port) = key.1 {
            self.at_ports.remove(&(key.0, port));
        }
        let shape = shape_of(key.0, key.1.is_some());
        if let Some(place) = self.shapes.iter().position(|(known, _)| *known == shape) {
            self.shapes[place].1 -= 1;
            if self.shapes[place].1 == 0 {
                self.shapes.swap_remove(place);
            }
        }
        true
    }
}

fn shape_of(clients: BannedPrefix, has_port: bool) -> Shape {
    Shape { is_ipv6: clients.0.addr().is_ipv6(), len: clients.0.prefix_len(), has_port }
}

/// The bans of a process, at one listener.
#[derive(Debug, Clone)]
pub struct BansAt {
    bans: Arc<Bans>,
    port: u16,
}

impl BansAt {
    /// `port`: the listener's.
    #[must_use]
    pub fn new(bans: Arc<Bans>, port: u16) -> Self {
        Self { bans, port }
    }

    /// Whether a client is banned here.
    #[must_use]
    pub fn has(&self, client: ClientAddr) -> bool {
        self.bans.has(client, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_for_a_port_are_found_by_their_clients() {
        let (bans, clients) = (Bans::default(), ["10.0.0.0/8", "10.0.0.7", "10.0.0.8"]);
        let all = Lifted::default();
        let [net, host, other] = clients.map(|clients| clients.parse().unwrap());
        let ban = |clients, port, until| {
            let port = NonZeroU16::new(port);
            Ban { clients, port, since: 0, until, by: None, why: "".into() }
        };
        let of_ports = || bans.write().at_ports.iter().map(|(_, port)| port.get()).collect::<Vec<_>>();
        bans.set(vec![ban(net, 443, None), ban(host, 443, None), ban(host, 80, Some(9))]).unwrap();
        bans.set(vec![ban(host, 0, None), ban(host, 443, None), ban(other, 0, None)]).unwrap();
        assert_eq!((of_ports(), bans.wider(other)), (vec![443, 80, 443], Some(net)));
        assert_eq!((bans.expire(10), of_ports()), (1, vec![443, 443]));
        assert_eq!((bans.lift(other, all), bans.lift(host, all)), (1, 2));
        assert_eq!((of_ports(), bans.lift(net, all), of_ports()), (vec![443], 1, vec![]));
    }
}
