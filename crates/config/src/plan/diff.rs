//! The difference of two plans, as changes for the engines. Pure: nothing is opened, read or asked here.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::checked::CheckedListener;
use super::key::ListenerKey;

/// One step from the running listeners to those of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Open(Arc<CheckedListener>),
    /// It accepts no new sessions. Open sessions continue; UDP flows end.
    Close(Arc<CheckedListener>),
    /// The sockets stay. New sessions use other rules, which differ in these parts.
    SetRules(Arc<CheckedListener>, Vec<Part>),
}

/// A part of a listener's rules, as an operator knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Options,
    Lists,
    Backends,
    Certificates,
    /// Of connections to backends.
    Mark,
    /// Where a session may not lead to.
    OwnListeners,
    /// Of several sites, the one that serves clients of no other.
    First(String),
    /// A site that is new, or has other rules.
    Site(String),
    /// A site that is there no more.
    Gone(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Options => "options",
            Self::Lists => "lists",
            Self::Backends => "backends' addresses",
            Self::Certificates => "certificates",
            Self::Mark => "mark",
            Self::OwnListeners => "own listeners",
            Self::First(name) => return write!(f, "first site {name}"),
            Self::Site(name) | Self::Gone(name) => return write!(f, "site {name}"),
        })
    }
}

/// The changes from `old` to `new`, in an order in which each is possible: a listener that blocks a new one
/// closes first; the others close last.
pub fn diff(old: &[Arc<CheckedListener>], new: &[Arc<CheckedListener>]) -> Vec<Change> {
    let find = |among: &[Arc<CheckedListener>], one: &CheckedListener| {
        among.iter().find(|other| other.key == one.key && other.has_same_sockets(one)).map(Arc::clone)
    };
    let opened: Vec<_> = new.iter().filter(|one| find(old, one).is_none()).map(Arc::clone).collect();
    let gone = old.iter().filter(|one| find(new, one).is_none()).map(Arc::clone);
    let (in_the_way, others): (Vec<_>, Vec<_>) =
        gone.partition(|one| opened.iter().any(|opened| opened.key.conflicts(&one.key)));
    let swapped = new.iter().filter_map(|one| {
        let parts = one.differences(&*find(old, one)?);
        (!parts.is_empty()).then(|| Change::SetRules(Arc::clone(one), parts))
    });
    in_the_way
        .into_iter()
        .map(Change::Close)
        .chain(opened.into_iter().map(Change::Open))
        .chain(swapped)
        .chain(others.into_iter().map(Change::Close))
        .collect()
}

impl Change {
    /// The listener.
    pub fn key(&self) -> ListenerKey {
        match self {
            Self::Open(one) | Self::Close(one) | Self::SetRules(one, _) => one.key,
        }
    }

    /// `running` after this change.
    pub fn apply_to(&self, running: &mut Vec<Arc<CheckedListener>>) {
        match self {
            Self::Open(one) => running.push(Arc::clone(one)),
            Self::Close(one) => running.retain(|other| other.key != one.key),
            Self::SetRules(one, _) => {
                running
                    .iter_mut()
                    .filter(|other| other.key == one.key)
                    .for_each(|other| *other = Arc::clone(one));
            }
        }
    }
}

impl CheckedListener {
    /// Whether the listening sockets of one can serve the other, in the same engine.
    fn has_same_sockets(&self, other: &Self) -> bool {
        let shape = |listener: &Self| {
            let config = &listener.config;
            (config.sockets, config.transparent, listener.v6_only, config.udp.dialect, config.needs_https())
        };
        shape(self) == shape(other)
    }

    /// From `other` to this one.
    fn differences(&self, other: &Self) -> Vec<Part> {
        if self.further.is_empty() && other.further.is_empty() {
            return self.own_differences(other);
        }
        let same = |site: &Self, among: &'_ Self| {
            among.and_further().find(|one| one.name() == site.name()).map(|one| site.own_differences(one))
        };
        let name = |site: &Self| site.name().to_owned();
        let first = (self.name() != other.name()).then(|| Part::First(name(self)));
        let changed =
            self.and_further().filter(|site| same(site, other).is_none_or(|parts| !parts.is_empty()));
        let gone = other.and_further().filter(|site| same(site, self).is_none());
        first
            .into_iter()
            .chain(changed.map(name).map(Part::Site))
            .chain(gone.map(name).map(Part::Gone))
            .collect()
    }

    fn own_differences(&self, other: &Self) -> Vec<Part> {
        let (read, others) = (&self.read, &other.read);
        [
            (Part::Options, self.config != other.config),
            (Part::Lists, !read.has_same_lists(others)),
            (Part::Backends, (&read.backends, &read.origins) != (&others.backends, &others.origins)),
            (Part::Certificates, read.certificates != others.certificates),
            (Part::OwnListeners, self.own_listeners() != other.own_listeners()),
        ]
        .into_iter()
        .filter_map(|(part, differs)| differs.then_some(part))
        .collect()
    }
}

impl CheckedListener {
    /// All listeners of the process, if a header or a connection chooses where its session goes.
    fn own_listeners(&self) -> Option<BTreeSet<SocketAddr>> {
        let is_chosen = self.config.dynamic.is_some() || self.config.backend_ports().any(|port| port == 0);
        is_chosen.then(|| self.policy.delivery.own_listeners.iter().copied().collect())
    }
}

/// The policy and the TLS configurations follow from what is compared.
impl PartialEq for CheckedListener {
    fn eq(&self, other: &Self) -> bool {
        (self.key, &self.config, &self.read, &self.names, &self.further, self.own_listeners())
            == (other.key, &other.config, &other.read, &other.names, &other.further, other.own_listeners())
    }
}

impl Eq for CheckedListener {}

#[cfg(test)]
mod tests;
