//! A plan as the commands that an operator would type, each under its reason.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::item::{IpFamily, IpTransport, LocalRoute, Need, Rule, TABLE_MAIN};
use super::place::BackendPlace;
use super::plan::{DEFAULT_TABLE, RoutePlan, Setup, Tproxy};

/// The command that sets what is needed.
pub fn command(need: &Need) -> String {
    match need {
        Need::Rule(rule) => format!("{} rule add {}", ip(rule.family), Selector(rule)),
        Need::LocalRoute(route) => format!("{} route add {}", ip(route.family), Destination(route)),
        Need::Switch(switch) => format!("sysctl -w {}=1", switch.name()),
    }
}

/// The whole plan as a shell script. `setup` must be the one that the plan was made for.
pub(crate) fn script(plan: &RoutePlan, setup: &Setup) -> String {
    let mut lines = Vec::new();
    for item in &plan.items {
        lines.push(format!("# {}", item.why));
        lines.push(command(&item.need));
    }
    if let Some(mark) = plan.upstream_mark {
        lines.push(format!("# and truepeer marks its upstream sockets: --mark {mark}"));
    }
    for tproxy in &setup.tproxy {
        lines.extend(redirection(tproxy));
    }
    if setup.backends.iter().any(|b| b.place == BackendPlace::Elsewhere) {
        lines.extend(precise_alternative(setup));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn ip(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip -6",
    }
}

struct Selector<'a>(&'a Rule);

impl fmt::Display for Selector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        if let Some(from) = rule.from {
            let host = from.prefix_len() == from.max_prefix_len() && !from.addr().is_loopback();
            if host && !from.addr().is_unspecified() {
                write!(f, "from {} ", from.addr())?;
            } else {
                write!(f, "from {from} ")?;
            }
        }
        if let Some(mark) = rule.mark {
            write!(f, "fwmark {mark} ")?;
        }
        if rule.sent_here {
            write!(f, "iif lo ")?;
        }
        if let Some(transport) = rule.transport {
            write!(f, "ipproto {} ", transport_name(transport))?;
        }
        if let Some(ports) = &rule.source_ports {
            write!(f, "sport {} ", Ports(ports))?;
        }
        // the seeds write `table` after a source and `lookup` after a mark; ip-rule(8) takes both
        let word = if rule.mark.is_some() || rule.transport.is_some() { "lookup" } else { "table" };
        match rule.table {
            TABLE_MAIN => write!(f, "{word} main"),
            table => write!(f, "{word} {table}"),
        }
    }
}

struct Destination<'a>(&'a LocalRoute);

impl fmt::Display for Destination<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalRoute { family, table, source } = self.0;
        let all = match family {
            IpFamily::V4 => "0.0.0.0/0",
            IpFamily::V6 => "::/0",
        };
        write!(f, "local {all} dev lo table {table}")?;
        match source {
            Some(source) => write!(f, " src {source}"),
            None => Ok(()),
        }
    }
}

struct Ports<'a>(&'a RangeInclusive<u16>);

impl fmt::Display for Ports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

fn transport_name(transport: IpTransport) -> &'static str {
    match transport {
        IpTransport::Tcp => "tcp",
        IpTransport::Udp => "udp",
    }
}

/// The firewall's part of TPROXY, which stays the operator's.
///
/// `iifname != "lo"`: without it, a connection that truepeer itself makes to a port of the range would be
/// redirected back to truepeer.
fn redirection(tproxy: &Tproxy) -> Vec<String> {
    let ports = tproxy.ports.clone().unwrap_or(10000..=20000);
    let (ports, mark) = (Ports(&ports), tproxy.mark);
    let mut lines = vec![
        "# redirect the ports to truepeer's listener: yours to keep, truepeer leaves firewalls alone"
            .to_owned(),
        "nft -f - <<'END'".to_owned(),
        "table inet truepeer {".to_owned(),
        "  chain to_truepeer {".to_owned(),
        "    type filter hook prerouting priority mangle".to_owned(),
    ];
    for family in IpFamily::ALL {
        if let Some((word, to)) = tproxy_target(tproxy.listen, family) {
            let nf = if family == IpFamily::V4 { "ipv4" } else { "ipv6" };
            lines.push(format!(
                "    iifname != \"lo\" meta nfproto {nf} tcp dport {ports} tproxy {word} to {to} meta mark set {mark} accept"
            ));
        }
    }
    lines.extend(["  }", "}", "END"].map(str::to_owned));
    lines
}

fn tproxy_target(listen: SocketAddr, family: IpFamily) -> Option<(&'static str, SocketAddr)> {
    let ip = listen.ip().to_canonical();
    let any = listen.ip().is_unspecified();
    let address = match () {
        () if any && (listen.is_ipv6() || family == IpFamily::V4) => family.loopback(),
        () if IpFamily::of(ip) == family => ip,
        () => return None,
    };
    let word = if family == IpFamily::V4 { "ip" } else { "ip6" };
    Some((word, SocketAddr::new(address, listen.port())))
}

/// Rules that match only the replies to truepeer's own sockets, where a rule on the port would match too
/// much.
fn precise_alternative(setup: &Setup) -> Vec<String> {
    let (mark, table) = (setup.mark.unwrap_or(setup.table), setup.table);
    let mut lines = vec![
        "# instead of the rules on a backend's port: catch only the replies to truepeer's own sockets, with --routes manual and".to_owned(),
        "#   nft -f - <<'END'".to_owned(),
        "#   table inet truepeer {".to_owned(),
        "#     chain from_backends {".to_owned(),
        "#       type filter hook prerouting priority mangle".to_owned(),
        format!("#       iifname != \"lo\" meta l4proto {{ tcp, udp }} socket transparent 1 meta mark set {mark} accept"),
        "#     }".to_owned(),
        "#   }".to_owned(),
        "#   END".to_owned(),
    ];
    for family in IpFamily::ALL {
        if setup
            .backends
            .iter()
            .any(|b| b.place == BackendPlace::Elsewhere && IpFamily::of(b.net.addr()) == family)
        {
            let ip = ip(family);
            lines.push(format!("#   {ip} rule add fwmark {mark} lookup {table}"));
        }
    }
    lines
}

/// The command that an operator types to add the routes of a setup.
pub fn apply_command(setup: &Setup) -> String {
    let mut command = "truepeer routes apply".to_owned();
    for backend in &setup.backends {
        let (ip, port) = (backend.net.addr(), *backend.ports.start());
        let option = if ip.is_ipv4() { "-4" } else { "-6" };
        if backend.net.prefix_len() == backend.net.max_prefix_len() && backend.ports.end() == &port {
            command += &format!(" {option} {}", SocketAddr::new(ip, port));
        } else {
            command += &format!(" --dynamic-allow {}:{port}-{}", backend.net, backend.ports.end());
        }
    }
    if setup.backends.iter().any(|b| b.transport == IpTransport::Udp) {
        command += " -p udp";
    }
    if let Some(mark) = setup.mark {
        command += &format!(" --mark {mark}");
    } else if setup.backends.iter().any(|b| b.place == BackendPlace::Local && b.transport == IpTransport::Tcp)
    {
        command += &format!(" --mark {}", setup.table);
    }
    if setup.table != DEFAULT_TABLE {
        command += &format!(" --table {}", setup.table);
    }
    for tproxy in &setup.tproxy {
        command += &format!(" --listen-transparent {}", tproxy.listen);
    }
    command
}

#[cfg(test)]
mod tests;
