//! `truepeer proxy`: from the command line to a plan.

use std::time::Duration;

use truepeer_policy::{Destinations, Dialect, HeaderRule, OnConflict, PrefixSet};

use super::confine::ConfineConfig;
use super::listener::{
    BackendsConfig, DynamicConfig, HeaderLimits, ListenerConfig, SpliceConfig, Timeouts, UdpConfig,
};
use super::problem::{Problem, Problems};
use super::senders::{self, ClaimsConfig, SendersConfig};
use super::tls::{OriginTlsConfig, TlsConfig, certificate};
use super::{AcmeConfig, AdminConfig, Config, LogConfig, RoutesConfig, resolve};
use crate::spec::{Carried, ConfineMode, HostPort, ListenAddr, Protocol, ProxySpec, SenderName, defaults};

/// The defaults of options. They differ for the programs that truepeer replaces.
pub struct Defaults {
    pub listen: ListenAddr,
    pub backends: UsualBackends,
    pub allow: PrefixSet,
    pub claims: PrefixSet,
    /// Whether a header may claim this host's own addresses.
    pub claims_host: bool,
    /// The destinations of `--dynamic-destination` without `--dynamic-allow`; `None`: it is required.
    pub dynamic_allow: Option<Destinations>,
    pub mark: u32,
    pub routes: RoutesConfig,
    pub on_conflict: OnConflict,
    pub drain: Duration,
}

/// When the default backends apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsualBackends {
    /// If neither -4 nor -6 is given: a service that was not named gets no clients.
    Together,
    /// Each separately, as in the programs that truepeer replaces. A default that would be truepeer's own
    /// listener is left out.
    EachAlone,
}

impl Default for Defaults {
    fn default() -> Self {
        let (host, port) = defaults::LISTEN;
        Self {
            listen: ListenAddr::new(host, port),
            backends: UsualBackends::Together,
            allow: PrefixSet::loopback(),
            claims: PrefixSet::new(),
            claims_host: false,
            dynamic_allow: None,
            mark: 0,
            routes: RoutesConfig::default(),
            on_conflict: OnConflict::default(),
            drain: defaults::DRAIN_TIMEOUT,
        }
    }
}

impl Config {
    /// Contradictions and addresses that can't be resolved are problems; files are not read yet.
    pub fn of_proxy(spec: &ProxySpec, defaults: &Defaults) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let template = listener(spec, defaults, &mut problems);
        let mut listeners = Vec::new();
        for addr in listening(spec, defaults) {
            let Some(bind) = problems.note(resolve::own_listener(addr)) else { continue };
            for &protocol in spec.protocol.unwrap_or_default().protocols() {
                let mut backends = backends(spec, defaults, bind.port());
                if !spec.listen_transparent {
                    backends.keep_port(bind.port());
                }
                listeners.push(ListenerConfig { bind, protocol, backends, ..template.clone() });
            }
        }
        let confine = ConfineConfig::of(&spec.process.confine, ConfineMode::default());
        let confine = problems.note(confine).unwrap_or_default();
        let log = problems.note(LogConfig::of(&spec.log)).unwrap_or_default();
        problems.none(Self {
            listeners,
            workers: spec.process.workers,
            max_flows: spec.flows.max_flows,
            drain: spec.process.drain_timeout.unwrap_or(defaults.drain),
            reload_on_change: spec.process.reload_on_change,
            confine,
            routes: RoutesConfig::of(&spec.routes, &defaults.routes),
            acme: AcmeConfig::default(),
            admin: AdminConfig { listen: spec.admin.admin.clone(), is_usual: false },
            log,
        })
    }
}

fn listening<'a>(spec: &'a ProxySpec, defaults: &'a Defaults) -> &'a [ListenAddr] {
    if spec.listen.is_empty() { std::slice::from_ref(&defaults.listen) } else { &spec.listen }
}

fn listener(spec: &ProxySpec, defaults: &Defaults, problems: &mut Problems) -> ListenerConfig {
    let common = ListenerConfig::default();
    refuse_idle_options(spec, defaults).into_iter().for_each(|problem| problems.add(problem));
    let tls = problems
        .note(TlsConfig::of(&spec.tls, &spec.tls_alpn, (&[], &[]), listening(spec, defaults)))
        .flatten();
    // Clients use TLS and connect directly: a header that any of them could write is not read.
    let rule = if tls.is_some() { HeaderRule::Forbid } else { HeaderRule::Require };
    let senders = &spec.senders;
    let admitted = SendersConfig::of(senders, &spec.allowed_subnets, (&defaults.allow, rule));
    ListenerConfig {
        bind: common.bind,
        protocol: common.protocol,
        transparent: spec.listen_transparent,
        sockets: spec.listeners.unwrap_or(common.sockets),
        mark: spec.upstream.mark.unwrap_or(defaults.mark),
        backends: common.backends,
        dynamic: problems.note(dynamic(spec, defaults)).flatten(),
        senders: problems.note(admitted).unwrap_or_default(),
        header: HeaderLimits::of(senders, spec.wait.header_wait),
        claims: ClaimsConfig::of(senders, &defaults.claims, defaults.claims_host),
        on_conflict: spec.upstream.on_conflict.unwrap_or(defaults.on_conflict),
        nat64_prefix: spec.nat64_prefix,
        pseudo_ipv4: spec.pseudo_ipv4,
        send_proxy: spec.send_proxy,
        send_tlv: spec.sent.send_tlv.clone(),
        timeouts: Timeouts {
            idle: spec.idle_timeout.map_or(common.timeouts.idle, |timeout| timeout.0),
            connect: spec.upstream.connect_timeout.unwrap_or(common.timeouts.connect),
        },
        splice: SpliceConfig {
            mode: spec.splice.unwrap_or_default(),
            after: spec.splice_after.unwrap_or_default(),
            linger: spec.splice_linger.unwrap_or_default(),
        },
        udp: UdpConfig {
            dialect: problems.note(dialect(spec)).unwrap_or_default(),
            close_after: spec.close_after.or(spec
                .senders
                .sender
                .filter(|_| has_udp(spec))
                .and_then(SenderName::silence)),
        },
        max_per_client: spec.tls.max_per_client,
        tls_timeout: spec.tls.tls_timeout.unwrap_or(common.tls_timeout),
        tls,
        origin_tls: problems.note(origin_tls(spec)).flatten(),
        http: None,
    }
}

fn has_udp(spec: &ProxySpec) -> bool {
    spec.protocol.unwrap_or_default().protocols().contains(&Protocol::Udp)
}

/// Where datagrams have the header: as it was said, or as the named sender writes it.
fn dialect(spec: &ProxySpec) -> Result<Dialect, Problem> {
    match (spec.udp_dialect, spec.senders.sender) {
        (Some(dialect), _) => Ok(dialect),
        (None, Some(sender)) if has_udp(spec) => sender.dialect().ok_or_else(|| senders::no_dialect(sender)),
        _ => Ok(Dialect::default()),
    }
}

/// Options without the intended effect. The programs that truepeer replaces ignore theirs.
fn refuse_idle_options(spec: &ProxySpec, defaults: &Defaults) -> Vec<Problem> {
    let mut problems = Vec::new();
    if spec.udp_dialect.is_some() && matches!(spec.protocol, None | Some(Carried::Tcp)) {
        problems.push(Problem::needs("udp-dialect", "protocol", "udp"));
    }
    if !spec.tls_alpn.is_empty() && spec.tls.tls_cert.is_empty() {
        problems.push(Problem::needs("tls-alpn", "tls-cert", "FILE"));
    }
    if spec.tls.tls_timeout.is_some() && spec.tls.tls_cert.is_empty() && !spec.origin_tls {
        problems.push(Problem::needs("tls-timeout", "tls-cert", "FILE"));
    }
    if spec.tls.max_per_client.is_some() && spec.protocol == Some(Carried::Udp) {
        problems.push(Problem::at(
            "max-per-client",
            "it limits connections; expected --protocol tcp or both with it",
        ));
    }
    let may_map = spec.nat64_prefix.is_some() || spec.send_proxy.is_some();
    if defaults.backends == UsualBackends::Together && !may_map {
        let ways = "; to show IPv4 clients there, add --nat64-prefix 64:ff9b::/96 or --send-proxy v2";
        problems.extend(spec.ipv4.iter().filter_map(|backend| resolve::refuse_ipv6(backend, ways).err()));
    }
    problems
}

fn backends(spec: &ProxySpec, defaults: &Defaults, own_port: u16) -> BackendsConfig {
    let usual = BackendsConfig::default();
    let choose =
        |named: &Option<HostPort>, usual: Option<HostPort>, other: &Option<HostPort>| match (named, other) {
            (Some(named), _) => Some(named.clone()),
            (None, None) => usual,
            (None, Some(_)) if defaults.backends == UsualBackends::Together => None,
            (None, Some(other)) if usual.as_ref().is_some_and(|usual| usual.port() == own_port) => {
                Some(other.clone())
            }
            (None, Some(_)) => usual,
        };
    BackendsConfig {
        ipv4: choose(&spec.ipv4, usual.ipv4, &spec.ipv6),
        ipv6: choose(&spec.ipv6, usual.ipv6, &spec.ipv4),
    }
}

fn dynamic(spec: &ProxySpec, defaults: &Defaults) -> Result<Option<DynamicConfig>, Problem> {
    let mut allow = Destinations::default();
    spec.dynamic_allow.iter().for_each(|entry| allow.extend(entry));
    match (spec.dynamic_destination, allow.is_empty(), &defaults.dynamic_allow) {
        (false, true, _) => Ok(None),
        (false, false, _) => Err(Problem::at("dynamic-allow", "expected --dynamic-destination with it")),
        (true, false, _) => Ok(Some(DynamicConfig { allow })),
        (true, true, Some(allow)) => Ok(Some(DynamicConfig { allow: allow.clone() })),
        (true, true, None) => Err(Problem::at(
            "dynamic-destination",
            "expected --dynamic-allow PREFIX[:PORTS] with it: a header could lead anywhere, such as to services that only this machine may reach",
        )),
    }
}

/// TLS with backends. Their certificates must contain the name from the command line.
fn origin_tls(spec: &ProxySpec) -> Result<Option<OriginTlsConfig>, Problem> {
    let origin = &spec.origin;
    if !spec.origin_tls {
        let given = origin.first_given().or((!spec.origin_alpn.is_empty()).then_some("origin-alpn"));
        return given.map_or(Ok(None), |option| Err(Problem::at(option, "expected --origin-tls with it")));
    }
    origin.refuse_contradictions()?;
    let usual = HostPort::new(defaults::IPV4.0, defaults::IPV4.1);
    let named: Vec<_> = [&spec.ipv4, &spec.ipv6].into_iter().flatten().collect();
    let hosts = if named.is_empty() { vec![&usual] } else { named };
    let name = match (&origin.origin_name, &hosts[..]) {
        (Some(name), _) => name.clone(),
        (None, [one]) => one.host().to_owned(),
        (None, [one, other]) if one.host() == other.host() => one.host().to_owned(),
        (None, _) => {
            return Err(Problem::at(
                "origin-tls",
                "-4 and -6 name different hosts; expected --origin-name NAME, which both certificates have",
            ));
        }
    };
    Ok(Some(OriginTlsConfig {
        name,
        ca: origin.origin_ca.clone(),
        insecure: origin.origin_insecure,
        alpn: spec.origin_alpn.clone(),
        cert: certificate(origin.origin_cert.as_ref(), origin.origin_key.as_ref()),
    }))
}
