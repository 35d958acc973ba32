//! `truepeer attach`: the rules of the kernel programs.

use std::collections::BTreeSet;

use truepeer_bpf::{Rules, UdpPort, without_overlaps};
use truepeer_handover::Destination;
use truepeer_policy::{Claims, Dialect, HeaderRule, HostAddresses, PrefixSet};

use super::datagrams;
use super::listener::HeaderLimits;
use super::problem::{Problem, Problems};
use super::senders::{self, ClaimsConfig, SendersConfig};
use super::speaks_first;
use crate::spec::{AttachSpec, Port, SenderName, Unshowable, defaults};

/// The rules, with files read, and warnings about risky or ineffective options.
pub fn attach_rules(spec: &AttachSpec) -> Result<(Rules, Vec<String>), Problems> {
    let mut problems = Problems::default();
    let usual = (&PrefixSet::loopback(), HeaderRule::Require);
    let senders = problems.note(SendersConfig::of(&spec.senders, &[], usual)).unwrap_or_default();
    problems.note(refuse_what_the_kernel_lacks(&senders));
    let claims = ClaimsConfig::of(&spec.senders, &PrefixSet::new(), false);
    let header = HeaderLimits::of(&spec.senders, spec.wait.header_wait);
    let allow = problems.note(senders.allowed()).unwrap_or_default();
    let secrets = problems.note(senders.secrets()).unwrap_or_default();
    problems.note(senders.policy(&allow, &secrets));
    problems.note(senders.refuse_keyed("the kernel programs compare secrets, and make no digests"));
    let denied = problems.note(claims.denied()).unwrap_or_default();
    let mut warnings = senders::warnings(&allow, &senders, &claims);
    let dialect = problems.note(dialect(spec)).unwrap_or_default();
    let ports = || spec.port.iter().flat_map(|ports| &ports.0);
    for (from, backend) in datagrams::ports_of(spec) {
        problems.note(datagrams::refuse_tftp("port", &Port::Udp { from, backend }, &[from, backend]));
        warnings.extend(datagrams::warn_of_raknet(from, backend));
    }
    if dialect == Dialect::Spp && !secrets.is_empty() && spec.port.iter().any(|ports| ports.has_udp()) {
        problems.add(Problem::at("require-tlv", "--udp-dialect spp has no TLVs; expected another dialect"));
    }
    if spec.destination == Some(Destination::Header) && spec.port.iter().any(|ports| ports.has_udp()) {
        let why = "a server gets a datagram's destination from the packet, as the kernel has routed it";
        let expected = "expected TCP ports alone; attach add gives UDP ports rules of their own";
        problems.add(Problem::at("destination header", format!("{why}: {expected}")));
    }
    let ranges = |is_udp: bool| {
        let given = spec.port.iter().flat_map(|ports| &ports.1).filter(|range| range.is_udp == is_udp);
        without_overlaps(given.map(|range| range.ports.clone()).collect())
    };
    let rules = Rules {
        tcp_ranges: ranges(false),
        udp_ranges: ranges(true),
        tcp_ports: ports().filter_map(|port| tcp(*port)).collect(),
        udp_ports: ports().filter_map(|port| udp(*port, dialect)).collect(),
        senders: allow,
        header: senders.header,
        exceptions: senders.exceptions(),
        required_tlvs: senders.required_tlvs(secrets),
        // The kernel programs get this host's addresses when they are attached.
        claims: Claims { host: HostAddresses::default(), ..claims.policy(&denied) },
        own_addresses: BTreeSet::new(),
        header_timeout: header.timeout,
        header_wait: header.wait,
        header_max: header.max_bytes,
        refuse_unshowable: spec.unshowable == Some(Unshowable::Refuse),
        shows_destination: spec.destination == Some(Destination::Header),
        udp_silence: spec
            .close_after
            .or(spec.senders.sender.and_then(SenderName::silence))
            .unwrap_or(dialect.default_silence()),
        max_flows: spec.max_flows.unwrap_or(defaults::ATTACH_MAX_FLOWS),
        max_udp_flows: spec.max_udp_flows.unwrap_or(defaults::ATTACH_MAX_UDP_FLOWS),
    };
    warnings.extend(in_vain(spec, &rules));
    let of_ranges = rules.tcp_ranges.iter().cloned().flatten();
    warnings.extend(speaks_first::warning(senders.sender, rules.tcp_ports.iter().copied().chain(of_ranges)));
    problems.none((rules, warnings))
}

/// Where datagrams have the header: as it was said, or as the named sender writes it.
fn dialect(spec: &AttachSpec) -> Result<Dialect, Problem> {
    let has_udp = spec.port.iter().any(|ports| ports.has_udp());
    match (spec.udp_dialect, spec.senders.sender) {
        (Some(dialect), _) => Ok(dialect),
        (None, Some(sender)) if has_udp => sender.dialect().ok_or_else(|| senders::no_dialect(sender)),
        _ => Ok(Dialect::default()),
    }
}

fn tcp(port: Port) -> Option<u16> {
    match port {
        Port::Tcp(port) => Some(port),
        Port::Udp { .. } => None,
    }
}

fn udp(port: Port, dialect: Dialect) -> Option<(u16, UdpPort)> {
    match port {
        Port::Tcp(_) => None,
        Port::Udp { from, backend } => Some((from, UdpPort { backend_port: backend, dialect })),
    }
}

/// What `--sender` stands for here.
pub fn note_of_sender(spec: &AttachSpec) -> Option<String> {
    let senders =
        SendersConfig::of(&spec.senders, &[], (&PrefixSet::loopback(), HeaderRule::Require)).ok()?;
    let has_udp = spec.port.iter().any(|ports| ports.has_udp());
    let dialect = dialect(spec).ok()?;
    senders.note(has_udp.then_some(dialect))
}

/// The kernel programs have nothing to do for senders without headers.
fn refuse_what_the_kernel_lacks(senders: &SendersConfig) -> Result<(), Problem> {
    const EXPECTED: &str = "expected require or optional";
    let without = "senders without a header are those that --allow does not list";
    let forbids = senders.rules.iter().find(|rule| rule.rule == HeaderRule::Forbid);
    match (senders.header, forbids) {
        (HeaderRule::Forbid, _) => Err(Problem::at("header forbid", format!("{EXPECTED}; {without}"))),
        (_, Some(rule)) => Err(Problem::at("header", format!("{rule}: {EXPECTED}; {without}"))),
        _ => Ok(()),
    }
}

/// Warnings about options that have no effect, or more effect than was perhaps intended.
fn in_vain(spec: &AttachSpec, rules: &Rules) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_optional = std::iter::once(&rules.header).chain(rules.exceptions.values());
    if is_optional.clone().any(|rule| *rule == HeaderRule::Optional) && !rules.udp_ports.is_empty() {
        warnings.push(
            "--header optional: a datagram without a header is taken for its sender's own; through a sender that passes \
             datagrams on as they are, everybody may claim to be anybody"
                .to_owned(),
        );
    }
    let options = [
        ("--header-timeout", spec.senders.header_timeout.is_some(), "TCP", rules.tcp_ports.is_empty()),
        ("--header-wait", spec.wait.header_wait.is_some(), "TCP", rules.tcp_ports.is_empty()),
        ("--cgroup", spec.cgroup.is_some(), "TCP", rules.tcp_ports.is_empty()),
        ("--unit", spec.unit.is_some(), "TCP", rules.tcp_ports.is_empty()),
        ("--udp-dialect", spec.udp_dialect.is_some(), "UDP", rules.udp_ports.is_empty()),
        ("--close-after", spec.close_after.is_some(), "UDP", rules.udp_ports.is_empty()),
    ];
    for (option, is_given, protocol, is_absent) in options {
        if is_given && is_absent {
            warnings.push(format!("{option} has no effect: no {protocol} port is named"));
        }
    }
    warnings
}
