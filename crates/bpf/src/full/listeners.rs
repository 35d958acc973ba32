//! A listener as the programs see it: its addresses, backends and lists.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use aya::maps::MapError;
use ipnet::IpNet;
use truepeer_policy::{Claims, HeaderRule, PrefixSet};

use super::begun::monotonic_ns;
use super::layout::{Endpoint, RawBackend, RawListener, RawPort, address_of, endpoint};
use super::{Full, Lending, Tables};
use crate::tables::write;
use crate::{AttachError, trie};

/// The group of this host's addresses. The groups before it belong to listeners.
pub(super) const OWN_ADDRESSES: u8 = crate::groups::MAX_GROUPS - 1;

/// An answer to a SYN is good for two minutes and some seconds (`COOKIE_LIFE_MS`).
const ANSWERS_GOOD_S: u32 = 140;

/// When a listener leaves the kernel's programs, some senders have connected and not sent anything yet. This
/// says where they are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unspoken {
    /// The listener's socket takes them.
    ToListener,
    /// The socket is about to be closed: the kernel still makes their sessions, where nothing is left to
    /// decide.
    ByKernel,
}

/// A listener whose sessions the kernel may make.
#[derive(Debug, Clone)]
pub struct Served {
    /// Where it listens.
    pub listens: SocketAddr,
    /// `[::]` takes IPv4 connections, too.
    pub is_dual: bool,
    /// The backend for IPv4 clients that come by IPv4.
    pub ipv4: Option<SocketAddr>,
    /// The backend for IPv6 clients that come by IPv6.
    pub ipv6: Option<SocketAddr>,
    /// The allowed senders.
    pub senders: PrefixSet,
    /// The rule for senders that `exceptions` doesn't list. The kernel makes sessions only where the rule is
    /// `require`.
    pub header: HeaderRule,
    /// Rules for some of the senders.
    pub exceptions: BTreeMap<IpNet, HeaderRule>,
    /// Clients that may not be claimed or are denied. truepeer gets these connections and refuses them.
    pub claims: Claims,
    /// This host's addresses, which may not be claimed either.
    pub own_addresses: BTreeSet<IpAddr>,
    /// The longest header.
    pub header_max: usize,
}

impl Served {
    /// For each family that listener and backend share: its version, the listener's address and the backend.
    fn families(&self) -> impl Iterator<Item = (u8, IpAddr, SocketAddr)> {
        let unmapped = self.listens.ip().to_canonical();
        let any_v4 = IpAddr::from(std::net::Ipv4Addr::UNSPECIFIED);
        let v4 = match unmapped {
            IpAddr::V4(_) => Some(unmapped),
            IpAddr::V6(ip) => (self.is_dual && ip.is_unspecified()).then_some(any_v4),
        };
        let v6 = unmapped.is_ipv6().then_some(unmapped);
        let with = |version, at: Option<IpAddr>, backend: Option<SocketAddr>| {
            let same = backend.filter(|backend| backend.is_ipv4() == (version == 4));
            at.zip(same).map(|(at, backend)| (version, at, backend))
        };
        [with(4, v4, self.ipv4), with(6, v6, self.ipv6)].into_iter().flatten()
    }

    /// Whether the kernel can make any of its sessions: listener and backend are of the same family.
    pub fn is_possible(&self) -> bool {
        self.families().next().is_some()
    }
}

impl Full {
    /// Has the kernel make sessions of this listener. Each comes back with `number` ([`super::Begun`]).
    /// Another call replaces the rules. Returns false if that begins only when this process owns the tables.
    ///
    /// # Errors
    /// If a system call fails, or if there are too many listeners.
    pub fn serve(&self, number: u16, served: &Served) -> Result<bool, AttachError> {
        let mut tables = self.tables();
        // Asked with the tables' lock taken: see take_over().
        match self.lent().state {
            Lending::Goes => tables.serve(number, served).map(|()| true),
            Lending::IsOver => Ok(false),
            Lending::NotYet => {
                tables.waiting.insert(number, served.clone());
                if tables.waiting.len() <= tables.groups.len() {
                    return Ok(false);
                }
                tables.waiting.remove(&number);
                Err(AttachError::TooManyListeners)
            }
        }
    }

    /// An heir serves its listeners as soon as it has the tables. Whether this process has them.
    pub(super) fn take_over(&self) -> Result<bool, AttachError> {
        let mut tables = self.tables();
        if self.lent().state != Lending::NotYet {
            return Ok(true);
        }
        if !self.splices.may_make_sessions() {
            if self.splices.awaits() {
                return Ok(false);
            }
            // Its predecessor did not make them: programs and tables are another process's.
            self.lent().state = Lending::IsOver;
            return Ok(true);
        }
        self.lent().state = Lending::Goes;
        tables.leave_all()?;
        let waiting = std::mem::take(&mut tables.waiting);
        waiting.iter().try_for_each(|(number, served)| tables.serve(*number, served))?;
        Ok(true)
    }

    /// The kernel answers no more SYNs for this listener.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn leave(&self, number: u16, unspoken: Unspoken) -> Result<(), AttachError> {
        let mut tables = self.tables();
        if self.lent().state == Lending::NotYet {
            tables.waiting.remove(&number);
            return Ok(());
        }
        tables.leave_ports(number, &[], unspoken)?;
        match tables.group_of(number) {
            // The kernel still needs the lists.
            Some(_) if unspoken == Unspoken::ByKernel => Ok(()),
            Some(group) => tables.forget_group(group),
            None => Ok(()),
        }
    }
}

/// The lists that a sender and its client must pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Lists {
    claims: Vec<trie::Entry>,
    denied: Vec<trie::Entry>,
    senders: Vec<trie::Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Claims,
    Denied,
    Senders,
}

trait WriteList {
    fn write(&mut self, list: List, group: u8, entries: &[trie::Entry]) -> Result<(), AttachError>;
}

impl WriteList for Tables {
    fn write(&mut self, list: List, group: u8, entries: &[trie::Entry]) -> Result<(), AttachError> {
        match list {
            List::Claims => write(&mut self.claims, "tp_claims", group, entries),
            List::Denied => write(&mut self.denied, "tp_denied", group, entries),
            List::Senders => write(&mut self.senders, "tp_senders", group, entries),
        }
    }
}

/// The programs read the lists at the same time. Without senders, the connections of the group's listener are
/// truepeer's for a moment; with senders, the other lists say whom to refuse.
fn change(tables: &mut impl WriteList, group: u8, lists: &Lists) -> Result<(), AttachError> {
    tables.write(List::Senders, group, &[])?;
    tables.write(List::Claims, group, &lists.claims)?;
    tables.write(List::Denied, group, &lists.denied)?;
    tables.write(List::Senders, group, &lists.senders)
}

impl Tables {
    fn serve(&mut self, number: u16, served: &Served) -> Result<(), AttachError> {
        let before = self.group_of(number);
        let group = match (self.free_group(), before) {
            (Ok(free), _) => free,
            (Err(_), Some(before)) => before,
            (Err(failure), None) => return Err(failure),
        };
        let lists = Lists {
            claims: trie::claims(&served.claims, &served.own_addresses),
            denied: trie::denied(&served.claims),
            senders: trie::senders(&served.senders, served.header, &served.exceptions),
        };
        change(self, group, &lists)?;
        self.groups[usize::from(group)] = Some(number);
        self.remove_forgotten()?;
        let mut ports = Vec::new();
        for (version, at, backend) in served.families() {
            self.add_backend(backend)?;
            let raw = RawListener {
                address: address_of(at),
                backend: address_of(backend.ip()),
                backend_port: backend.port().to_be_bytes(),
                group,
                is_any: at.is_unspecified().into(),
                number: number.into(),
                header_max: u32::try_from(served.header_max).unwrap_or(u32::MAX),
                left_s: 0,
                is_draining: 0,
            };
            let port = RawPort { port: served.listens.port().to_be_bytes(), version, unused: 0 };
            self.listeners.insert(port, raw, 0).map_err(AttachError::map("writing", "tf_listeners"))?;
            ports.push(port);
        }
        // Ports that the listener has no longer.
        self.leave_ports(number, &ports, Unspoken::ToListener)?;
        match before {
            Some(before) if before != group => self.forget_group(before),
            _ => Ok(()),
        }
    }

    fn group_of(&self, number: u16) -> Option<u8> {
        let at = self.groups.iter().position(|owner| *owner == Some(number))?;
        u8::try_from(at).ok()
    }

    fn free_group(&self) -> Result<u8, AttachError> {
        let free = self.groups.iter().position(Option::is_none);
        free.and_then(|at| u8::try_from(at).ok()).ok_or(AttachError::TooManyListeners)
    }

    pub(super) fn set_own_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), AttachError> {
        self.write(List::Denied, OWN_ADDRESSES, &trie::hosts(addresses))
    }

    fn forget_group(&mut self, group: u8) -> Result<(), AttachError> {
        self.groups[usize::from(group)] = None;
        change(self, group, &Lists::default())
    }

    fn entries(&self) -> Result<Vec<(RawPort, RawListener)>, AttachError> {
        let found: Result<_, MapError> = self.listeners.iter().collect();
        found.map_err(AttachError::map("reading", "tf_listeners"))
    }

    /// Marks all ports of this listener but `kept` as left. They are not removed: senders that the kernel has
    /// answered would be reset.
    fn leave_ports(&mut self, number: u16, kept: &[RawPort], unspoken: Unspoken) -> Result<(), AttachError> {
        for (port, mut raw) in self.entries()? {
            if raw.number == u32::from(number) && raw.left_s == 0 && !kept.contains(&port) {
                raw.left_s = now_s();
                raw.is_draining = (unspoken == Unspoken::ByKernel).into();
                self.listeners.insert(port, raw, 0).map_err(AttachError::map("writing", "tf_listeners"))?;
            }
        }
        Ok(())
    }

    /// Those of a process that was killed before it left them.
    fn leave_all(&mut self) -> Result<(), AttachError> {
        let numbers: BTreeSet<u32> = self.entries()?.iter().map(|(_, raw)| raw.number).collect();
        let numbers = numbers.into_iter().filter_map(|number| u16::try_from(number).ok());
        numbers.into_iter().try_for_each(|number| self.leave_ports(number, &[], Unspoken::ToListener))
    }

    /// Removes ports that were left so long ago that all their cookies have expired.
    fn remove_forgotten(&mut self) -> Result<(), AttachError> {
        let now = now_s();
        for (port, raw) in self.entries()? {
            if raw.left_s != 0 && now.saturating_sub(raw.left_s) > ANSWERS_GOOD_S {
                self.listeners.remove(&port).map_err(AttachError::map("removing from", "tf_listeners"))?;
            }
        }
        Ok(())
    }

    /// An entry that exists stays, with all that was learnt.
    fn add_backend(&mut self, backend: SocketAddr) -> Result<(), AttachError> {
        const NO_EXIST: u64 = 1;
        let key: Endpoint = endpoint(backend);
        match self.backends.insert(key, RawBackend::UNKNOWN, NO_EXIST) {
            Err(error) if self.backends.get(&key, 0).is_err() => {
                Err(AttachError::map("writing", "tf_backends")(error))
            }
            _ => Ok(()),
        }
    }
}

/// Seconds of the monotonic clock. Never 0: that means *not left*.
fn now_s() -> u32 {
    u32::try_from(monotonic_ns() / 1_000_000_000).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists of one group, as the programs find them after each change.
    #[derive(Default)]
    struct Seen(Vec<Lists>);

    impl WriteList for Seen {
        fn write(&mut self, list: List, _: u8, entries: &[trie::Entry]) -> Result<(), AttachError> {
            let mut now = self.0.last().cloned().unwrap_or_default();
            let changed = match list {
                List::Claims => &mut now.claims,
                List::Denied => &mut now.denied,
                List::Senders => &mut now.senders,
            };
            *changed = entries.to_vec();
            self.0.push(now);
            Ok(())
        }
    }

    /// As after a reload with as many listeners as there are groups.
    #[test]
    fn no_sender_is_judged_by_old_lists_and_new_ones() {
        let entries = |net: &str, value| vec![(net.parse().unwrap(), value)];
        let lists = |net: &str| Lists {
            claims: entries(net, 1),
            denied: entries(net, trie::DENIED),
            senders: entries(net, 1),
        };
        let (old, new) = (lists("2001:db8:1::/48"), lists("2001:db8:2::/48"));
        let mut seen = Seen(vec![old.clone()]);
        change(&mut seen, 3, &new).unwrap();
        change(&mut seen, 3, &Lists::default()).unwrap();
        for lists in &seen.0 {
            assert!(lists.senders.is_empty() || [&old, &new].contains(&lists), "{lists:?}");
        }
        assert!(seen.0.contains(&new) && seen.0.last() == Some(&Lists::default()), "{:?}", seen.0);
    }

    fn served(listens: &str, is_dual: bool, ipv4: &str, ipv6: &str) -> Served {
        Served {
            listens: listens.parse().unwrap(),
            is_dual,
            ipv4: ipv4.parse().ok(),
            ipv6: ipv6.parse().ok(),
            senders: PrefixSet::loopback(),
            header: HeaderRule::Require,
            exceptions: BTreeMap::new(),
            claims: Claims::default(),
            own_addresses: BTreeSet::new(),
            header_max: 536,
        }
    }

    fn families(served: &Served) -> Vec<(u8, String)> {
        served.families().map(|(version, at, _)| (version, at.to_string())).collect()
    }

    #[test]
    fn a_family_is_served_where_listener_and_backend_have_it() {
        let v4 = served("0.0.0.0:443", false, "10.0.0.2:80", "[fd00::2]:80");
        assert_eq!(families(&v4), [(4, "0.0.0.0".to_owned())]);
        let both = served("[::]:443", true, "10.0.0.2:80", "[fd00::2]:80");
        assert_eq!(families(&both), [(4, "0.0.0.0".to_owned()), (6, "::".to_owned())]);
        assert_eq!(
            families(&served("[::]:443", false, "10.0.0.2:80", "[fd00::2]:80")),
            [(6, "::".to_owned())]
        );
        assert_eq!(
            families(&served("[::1]:443", true, "10.0.0.2:80", "[fd00::2]:80")),
            [(6, "::1".to_owned())]
        );
        assert!(!served("10.0.0.1:443", false, "none", "[fd00::2]:80").is_possible());
        assert!(!served("10.0.0.1:443", false, "[fd00::2]:80", "none").is_possible());
    }
}
