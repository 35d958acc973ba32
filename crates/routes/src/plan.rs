//! Computes which rules, routes and sysctls a setup needs. Pure.
//!
//! | backend | TCP | UDP |
//! |---|---|---|
//! | on loopback | `from 127.0.0.1/8 iif lo` | the same, and a rule on the port for backends on a wildcard address |
//! | on another local address | mark + `tcp_fwmark_accept`, `from BACKEND fwmark M iif lo` | `from BACKEND iif lo ipproto udp sport PORT` |
//! | elsewhere, replies pass here | `from BACKEND ipproto tcp sport PORT` | the same with `udp` |
//!
//! All of them lead to one table that holds nothing but `local default dev lo`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::item::{IpFamily, IpTransport, Item, LocalRoute, Need, Rule, Switch, TABLE_MAIN};
use super::place::BackendPlace;

/// The table that go-mmproxy's documents use.
pub const DEFAULT_TABLE: u32 = 123;

/// The mark that go-mmproxy's TPROXY example puts on redirected packets.
pub const DEFAULT_TPROXY_MARK: u32 = 1;

/// One place where sessions or flows may end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// One address, or a prefix that `--dynamic-allow` opens.
    pub net: IpNet,
    /// Its ports.
    pub ports: RangeInclusive<u16>,
    /// TCP or UDP.
    pub transport: IpTransport,
    /// Where it is.
    pub place: BackendPlace,
}

/// Listening for what netfilter's TPROXY redirects (`--listen-transparent`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tproxy {
    /// The mark that the redirecting firewall rule sets.
    pub mark: u32,
    /// The redirected ports; `None` where only the firewall knows them.
    pub ports: Option<RangeInclusive<u16>>,
    /// truepeer's listening address.
    pub listen: SocketAddr,
}

/// What truepeer is asked to do, as far as routing is affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Every backend of every listener.
    pub backends: Vec<Backend>,
    /// `--mark`, unless 0.
    pub mark: Option<u32>,
    /// `--table`.
    pub table: u32,
    /// Every listener with `--listen-transparent`.
    pub tproxy: Vec<Tproxy>,
    /// The machine has `tcp_fwmark_accept=1` already: it matters to TPROXY.
    pub(crate) fwmark_accept: bool,
}

impl Setup {
    /// An empty setup; `mark` 0 means none, as on the command line.
    pub fn new(table: u32, mark: u32) -> Self {
        let mark = (mark != 0).then_some(mark);
        Self { backends: Vec::new(), mark, table, tproxy: Vec::new(), fwmark_accept: false }
    }

    /// Adds one backend; `local` lists the addresses of this network namespace.
    pub fn backend(&mut self, address: SocketAddr, transport: IpTransport, local: &[IpAddr]) {
        let ip = address.ip().to_canonical();
        let place = BackendPlace::of(ip, local);
        self.push(Backend { net: ip.into(), ports: address.port()..=address.port(), transport, place });
    }

    /// Adds a prefix of dynamic destinations.
    ///
    /// A prefix that contains local addresses stands for those only. The other addresses need no rules from
    /// truepeer. Rules for them could cut off other programs' traffic, so they are left to the operator.
    pub fn dynamic(
        &mut self,
        prefix: IpNet,
        ports: RangeInclusive<u16>,
        transport: IpTransport,
        local: &[IpAddr],
    ) {
        let ours: Vec<IpAddr> = local.iter().copied().filter(|ip| prefix.contains(ip)).collect();
        for ip in &ours {
            let backend = Backend {
                net: (*ip).into(),
                ports: ports.clone(),
                transport,
                place: BackendPlace::of(*ip, local),
            };
            self.push(backend);
        }
        let place = BackendPlace::of(prefix.network(), local);
        if ours.is_empty() && prefix.prefix_len() > 0 {
            self.push(Backend { net: prefix.trunc(), ports, transport, place });
        }
    }

    fn push(&mut self, backend: Backend) {
        if !self.backends.contains(&backend) {
            self.backends.push(backend);
        }
    }

    /// The mark that truepeer's upstream TCP sockets need where a backend is local but not on loopback:
    /// the operator's, or else the table's number.
    fn needed_mark(&self) -> Option<u32> {
        let needs = |b: &Backend| b.place == BackendPlace::Local && b.transport == IpTransport::Tcp;
        self.backends.iter().any(needs).then(|| self.mark.unwrap_or(self.table))
    }
}

/// What the kernel must have for a [`Setup`] to work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutePlan {
    /// In the order in which they must be added.
    pub items: Vec<Item>,
    /// The mark that truepeer must put on its upstream sockets; `None`: the plan needs none.
    pub upstream_mark: Option<u32>,
}

const REPLIES_COME_BACK: &str = "whatever is looked up in this table is delivered to this machine";
const FROM_LOOPBACK: &str = "replies of a backend on loopback come back to truepeer";
const FROM_WILDCARD_4: &str = "a UDP backend on 0.0.0.0 replies before it has chosen a source address";
const FROM_WILDCARD_6: &str =
    "a UDP backend on [::] replies before it has chosen a source address (every IPv6 socket on this port)";
const FROM_MARKED: &str =
    "replies of a backend on this address come back, those to truepeer's marked connections only";
const FROM_LOCAL_PORT: &str =
    "replies of a UDP backend on this address come back (its direct clients get no replies any more)";
const FROM_ELSEWHERE: &str = "replies that pass this host are taken in (clients that reach this port through this host without truepeer are cut off)";
const ACCEPT_MARK: &str = "the backend's accepted socket inherits the mark of truepeer's connection";
const REFLECT_MARK: &str = "a refusal (RST) by a port where nothing listens comes back, too";
const REDIRECTED: &str = "packets that TPROXY has marked are delivered here, whatever their destination is";
const SENDER_REPLIES: &str = "what truepeer answers on a redirected connection leaves by the ordinary routes, though tcp_fwmark_accept has marked it";

impl RoutePlan {
    /// The same setup always gives the same plan.
    pub fn for_setup(setup: &Setup) -> Self {
        let mut plan = Self { items: Vec::new(), upstream_mark: setup.needed_mark() };
        for family in IpFamily::ALL {
            plan.add_family(setup, family);
        }
        plan
    }

    fn add_family(&mut self, setup: &Setup, family: IpFamily) {
        let before = self.items.len();
        for backend in setup.backends.iter().filter(|b| IpFamily::of(b.net.addr()) == family) {
            self.add_backend(setup, family, backend);
        }
        self.add_redirection(setup, family);
        if self.items.len() > before {
            let route = Need::LocalRoute(local_route(setup, family));
            self.items.insert(before, Item { need: route, why: REPLIES_COME_BACK });
        }
    }

    fn add_backend(&mut self, setup: &Setup, family: IpFamily, backend: &Backend) {
        match (backend.place, backend.transport) {
            (BackendPlace::Loopback, transport) => {
                self.rule(from_loopback(family, setup.table), FROM_LOOPBACK);
                if transport == IpTransport::Udp {
                    self.add_wildcard_udp(family, setup.table, backend);
                }
            }
            (BackendPlace::Local, IpTransport::Tcp) => self.add_local_tcp(family, setup, backend),
            (BackendPlace::Local, IpTransport::Udp) => {
                self.rule(Rule { sent_here: true, ..by_port(family, setup.table, backend) }, FROM_LOCAL_PORT);
            }
            (BackendPlace::Elsewhere, _) => self.rule(by_port(family, setup.table, backend), FROM_ELSEWHERE),
        }
    }

    /// An unbound socket has no source yet when the rules are asked: IPv4 matches that as `0.0.0.0/32`,
    /// IPv6 can't match it at all (`fib6_rule_match` skips a rule with a source), hence the broader rule.
    fn add_wildcard_udp(&mut self, family: IpFamily, table: u32, backend: &Backend) {
        let port = Rule { sent_here: true, ..by_port(family, table, backend) };
        match family {
            IpFamily::V4 => {
                let nobody = IpNet::from(IpAddr::from([0, 0, 0, 0]));
                self.rule(Rule { from: Some(nobody), ..port }, FROM_WILDCARD_4);
            }
            IpFamily::V6 => self.rule(Rule { from: None, ..port }, FROM_WILDCARD_6),
        }
    }

    fn add_local_tcp(&mut self, family: IpFamily, setup: &Setup, backend: &Backend) {
        let rule = Rule {
            from: Some(backend.net),
            sent_here: true,
            mark: self.upstream_mark,
            ..Rule::to_table(family, setup.table)
        };
        self.rule(rule, FROM_MARKED);
        self.add(Need::Switch(Switch::TcpFwmarkAccept), ACCEPT_MARK);
        let reflect = match family {
            IpFamily::V4 => Switch::FwmarkReflect4,
            IpFamily::V6 => Switch::FwmarkReflect6,
        };
        self.add(Need::Switch(reflect), REFLECT_MARK);
    }

    fn add_redirection(&mut self, setup: &Setup, family: IpFamily) {
        for tproxy in setup.tproxy.iter().filter(|t| serves(t.listen, family)) {
            let marked = Rule { mark: Some(tproxy.mark), ..Rule::to_table(family, setup.table) };
            self.rule(marked.clone(), REDIRECTED);
            if setup.needed_mark().is_some() || setup.fwmark_accept {
                // stands in front of the one above, because a later rule gets the smaller priority
                self.rule(Rule { sent_here: true, table: TABLE_MAIN, ..marked }, SENDER_REPLIES);
            }
        }
    }

    fn rule(&mut self, rule: Rule, why: &'static str) {
        self.add(Need::Rule(rule), why);
    }

    fn add(&mut self, need: Need, why: &'static str) {
        if !self.items.iter().any(|item| item.need == need) {
            self.items.push(Item { need, why });
        }
    }
}

fn local_route(setup: &Setup, family: IpFamily) -> LocalRoute {
    let replies_unbound = |b: &Backend| {
        b.transport == IpTransport::Udp
            && b.place == BackendPlace::Loopback
            && IpFamily::of(b.net.addr()) == family
    };
    let source = setup.backends.iter().any(replies_unbound).then(|| family.loopback());
    LocalRoute { family, table: setup.table, source }
}

fn from_loopback(family: IpFamily, table: u32) -> Rule {
    // 127.0.0.1/8, as the documents of go-mmproxy write it; the kernel masks it
    let prefix_len = if family == IpFamily::V4 { 8 } else { 128 };
    let from = IpNet::new_assert(family.loopback(), prefix_len);
    Rule { from: Some(from), sent_here: true, ..Rule::to_table(family, table) }
}

fn by_port(family: IpFamily, table: u32, backend: &Backend) -> Rule {
    Rule {
        from: Some(backend.net),
        transport: Some(backend.transport),
        source_ports: narrowing(&backend.ports),
        ..Rule::to_table(family, table)
    }
}

/// All ports are the same as no selector; port 0 is one the kernel refuses in a rule.
fn narrowing(ports: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
    let first = (*ports.start()).max(1);
    (first > 1 || *ports.end() < u16::MAX).then(|| first..=*ports.end())
}

/// Whether a listener on `listen` can be given redirected packets of this family: `[::]` serves both.
fn serves(listen: SocketAddr, family: IpFamily) -> bool {
    let ip = listen.ip();
    IpFamily::of(ip.to_canonical()) == family || (ip.is_ipv6() && ip.is_unspecified())
}

#[cfg(test)]
mod tests;
