//! The rules and routes that a keeper may change. The list comes from the configuration at the start, before
//! any byte of the network is read.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use truepeer_config::plan::{CheckedEntry, CheckedProcess, setup_of};
use truepeer_config::spec::RoutesMode;
use truepeer_routes::item::{IpFamily, IpTransport, LocalRoute, Need, Rule, TABLE_MAIN};

/// The tables, marks and prefixes that the rules of a process may have.
///
/// A rule has the form of one that `routes::plan` makes. A single address may be any: a reload may name
/// another backend. So a process that an attacker has taken over can bring packets of single foreign
/// addresses to this host, but it can't add other rules, or touch those of others.
#[derive(Debug, Default)]
pub struct Permitted {
    tables: BTreeSet<u32>,
    marks: BTreeSet<u32>,
    /// Of `--dynamic-allow`.
    prefixes: Vec<IpNet>,
}

impl Permitted {
    /// What the entries of a configuration may need.
    pub fn of(process: &CheckedProcess) -> Self {
        let mut permitted = Self::default();
        for entry in &process.entries {
            let CheckedEntry::Relay { config, checked } = entry else { continue };
            if config.routes.mode == RoutesMode::Manual {
                continue;
            }
            let options = setup_of(config, checked);
            permitted.tables.insert(options.table);
            let marks = [options.mark, options.table, options.tproxy_mark];
            permitted.marks.extend(marks.into_iter().filter(|mark| *mark != 0));
            permitted.prefixes.extend(options.dynamic.iter().map(|(prefix, ..)| *prefix));
        }
        permitted
    }

    /// # Errors
    /// Why truepeer can't want it.
    pub(super) fn check(&self, need: &Need) -> Result<(), String> {
        match need {
            Need::Rule(rule) => self.check_rule(rule),
            Need::LocalRoute(route) => self.check_route(route),
            Need::Switch(_) => self.check_any(),
        }
    }

    /// # Errors
    /// It may change no rules at all.
    pub(super) fn check_any(&self) -> Result<(), String> {
        if self.tables.is_empty() { Err("no rules, because of --routes manual".to_owned()) } else { Ok(()) }
    }

    fn check_route(&self, route: &LocalRoute) -> Result<(), String> {
        self.check_table(route.table)?;
        match route.source {
            Some(source) if source != route.family.loopback() => Err(format!("a route with source {source}")),
            _ => Ok(()),
        }
    }

    fn check_table(&self, table: u32) -> Result<(), String> {
        if self.tables.contains(&table) {
            return Ok(());
        }
        Err(format!(
            "table {table} is none of the tables of the start: restart truepeer to use another --table"
        ))
    }

    fn check_rule(&self, rule: &Rule) -> Result<(), String> {
        if rule.table == TABLE_MAIN && rule.sent_here && self.is_by_mark(rule) {
            return Ok(());
        }
        self.check_table(rule.table)?;
        if let Some(mark) = rule.mark.filter(|mark| !self.marks.contains(mark)) {
            return Err(format!(
                "mark {mark} is none of the marks of the start: restart truepeer to use another --mark"
            ));
        }
        let has_form = match (rule.from, rule.mark, rule.transport) {
            (None, Some(_), None) => !rule.sent_here && rule.source_ports.is_none(),
            (None, None, Some(IpTransport::Udp)) => rule.family == IpFamily::V6 && rule.sent_here,
            (Some(from), None, None) => {
                from.trunc() == loopback(rule.family) && rule.sent_here && rule.source_ports.is_none()
            }
            (Some(from), Some(_), None) => {
                self.is_backend(from, rule.family) && rule.sent_here && rule.source_ports.is_none()
            }
            (Some(from), None, Some(_)) => self.is_backend(from, rule.family),
            _ => false,
        };
        if has_form { Ok(()) } else { Err(format!("{rule:?} is no rule of truepeer")) }
    }

    /// A rule by a mark of the start and nothing else.
    fn is_by_mark(&self, rule: &Rule) -> bool {
        let is_ours = rule.mark.is_some_and(|mark| self.marks.contains(&mark));
        is_ours && rule.from.is_none() && rule.transport.is_none() && rule.source_ports.is_none()
    }

    /// One address, or a prefix of the start.
    fn is_backend(&self, net: IpNet, family: IpFamily) -> bool {
        let is_known = || self.prefixes.iter().any(|prefix| prefix.contains(&net));
        IpFamily::of(net.addr()) == family && (net.prefix_len() == net.max_prefix_len() || is_known())
    }
}

/// The prefix of `routes::plan`'s first rule.
fn loopback(family: IpFamily) -> IpNet {
    let length = match family {
        IpFamily::V4 => 8,
        IpFamily::V6 => 128,
    };
    IpNet::new_assert(family.loopback(), length).trunc()
}

/// Whether a client can have this address.
///
/// # Errors
/// Why not.
pub(super) fn check_client(address: SocketAddr) -> Result<(), String> {
    let is_nobody = |ip: IpAddr| ip.is_unspecified() || ip.is_multicast();
    if address.port() == 0 || is_nobody(address.ip().to_canonical()) {
        return Err(format!("no client has the address {address}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use truepeer_routes::item::Switch;
    use truepeer_routes::plan::{RoutePlan, Setup, Tproxy};

    fn permitted() -> Permitted {
        Permitted {
            tables: [123].into(),
            marks: [123, 7, 1].into(),
            prefixes: vec!["10.5.0.0/16".parse().unwrap(), "fd00:5::/64".parse().unwrap()],
        }
    }

    #[test]
    fn every_rule_of_a_plan_is_permitted() {
        let local = ["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()];
        let backends =
            ["127.0.0.1:80", "10.9.0.1:80", "10.7.7.2:80", "[::1]:80", "[fd00:9::1]:80", "[fd00:7::1]:80"];
        for mark in [0, 7] {
            let mut setup = Setup::new(123, mark);
            for transport in [IpTransport::Tcp, IpTransport::Udp] {
                for backend in backends {
                    setup.backend(backend.parse().unwrap(), transport, &local);
                }
                for (prefix, ports) in
                    [("10.5.0.0/16", 1..=65535), ("10.5.3.0/24", 80..=90), ("fd00:5::/64", 443..=443)]
                {
                    setup.dynamic(prefix.parse().unwrap(), ports, transport, &local);
                }
            }
            for listen in ["0.0.0.0:443", "[::]:443"] {
                setup.tproxy.push(Tproxy { mark: 1, ports: None, listen: listen.parse().unwrap() });
            }
            let plan = RoutePlan::for_setup(&setup);
            assert!(
                plan.items
                    .iter()
                    .any(|item| matches!(&item.need, Need::Rule(rule) if rule.table == TABLE_MAIN))
            );
            for item in plan.items {
                permitted().check(&item.need).unwrap();
            }
        }
    }

    fn rule(change: impl FnOnce(&mut Rule)) -> Need {
        let mut rule = Rule::to_table(IpFamily::V4, 123);
        rule.from = Some("192.0.2.1/32".parse().unwrap());
        rule.transport = Some(IpTransport::Tcp);
        change(&mut rule);
        Need::Rule(rule)
    }

    #[test]
    fn what_truepeer_never_wants_is_refused() {
        let permitted = permitted();
        permitted.check(&rule(|_| ())).unwrap();
        let net = |text: &str| Some(text.parse().unwrap());
        let route = |table, source: Option<&str>| {
            let source = source.map(|source| source.parse().unwrap());
            Need::LocalRoute(LocalRoute { family: IpFamily::V4, table, source })
        };
        permitted.check(&route(123, Some("127.0.0.1"))).unwrap();
        permitted.check(&Need::Switch(Switch::FwmarkReflect4)).unwrap();
        for refused in [
            rule(|rule| rule.table = 124),
            rule(|rule| rule.table = 255),
            rule(|rule| rule.table = TABLE_MAIN),
            rule(|rule| rule.from = None),
            rule(|rule| rule.from = net("0.0.0.0/0")),
            rule(|rule| rule.from = net("192.0.2.0/24")),
            rule(|rule| rule.from = net("10.0.0.0/8")),
            rule(|rule| rule.from = net("2001:db8::1/128")),
            rule(|rule| rule.transport = None),
            rule(|rule| rule.mark = Some(7)),
            rule(|rule| (rule.transport, rule.mark) = (None, Some(8))),
            rule(|rule| (rule.transport, rule.mark) = (None, Some(7))),
            rule(|rule| (rule.from, rule.transport, rule.mark) = (None, None, Some(8))),
            rule(|rule| (rule.from, rule.transport) = (None, Some(IpTransport::Udp))),
            rule(|rule| {
                (rule.from, rule.transport, rule.table, rule.mark) = (None, None, TABLE_MAIN, Some(8))
            }),
            rule(|rule| (rule.from, rule.transport, rule.sent_here) = (None, None, true)),
            rule(|rule| (rule.from, rule.transport) = (net("127.0.0.0/8"), None)),
            route(124, None),
            route(254, None),
            route(123, Some("192.0.2.1")),
        ] {
            permitted.check(&refused).unwrap_err();
        }
    }

    #[test]
    fn a_port_is_shared_for_a_client_only() {
        for address in
            ["0.0.0.0:80", "[::]:80", "192.0.2.1:0", "224.0.0.1:80", "[ff02::1]:80", "[::ffff:0.0.0.0]:80"]
        {
            check_client(address.parse().unwrap()).unwrap_err();
        }
        check_client("192.0.2.1:80".parse().unwrap()).unwrap();
    }
}
