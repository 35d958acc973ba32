//! `truepeer https`: from the command line to a plan.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use truepeer_policy::{HeaderRule, PrefixSet};

use super::confine::ConfineConfig;
use super::http::HttpConfig;
use super::listener::{BackendsConfig, HeaderLimits, ListenerConfig, Timeouts};
use super::problem::{OptionName, Problem, Problems};
use super::senders::{ClaimsConfig, SendersConfig};
use super::tls::TlsConfig;
use super::{AcmeConfig, AdminConfig, Config, LogConfig, RoutesConfig, origins, resolve};
use crate::spec::{
    ClientAddressConfig, ClientCert, ConfineMode, HeaderOption, HttpsSpec, ListenAddr, OnHttp, RoutesMode,
    SendProxy, Stack, defaults,
};

impl Config {
    /// Contradictions and addresses that can't be resolved are problems; files are not read yet.
    pub fn of_https(spec: &HttpsSpec) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let (host, port) = defaults::LISTEN_HTTPS;
        let usual = [ListenAddr::new(host, port)];
        let listen = if spec.listen.is_empty() { &usual[..] } else { &spec.listen[..] };
        let template = listener(spec, listen, &mut problems);
        let binds = listen.iter().filter_map(|addr| problems.note(resolve::own_listener(addr)));
        let binds: Vec<_> = binds.collect();
        let mut listeners: Vec<_> =
            binds.iter().map(|&bind| ListenerConfig { bind, ..template.clone() }).collect();
        listeners.extend(without_tls(spec, &template, binds.first().map(SocketAddr::port), &mut problems));
        let routes = problems.note(routes(spec)).unwrap_or_default();
        let confine = problems.note(confine(spec)).unwrap_or_default();
        let log = problems.note(LogConfig::of(&spec.log)).unwrap_or_default();
        let acme = problems.note(acme(spec)).unwrap_or_default();
        problems.none(Self {
            acme,
            listeners,
            workers: workers(spec),
            max_flows: None,
            drain: spec.process.drain_timeout.unwrap_or(defaults::DRAIN_TIMEOUT),
            reload_on_change: spec.process.reload_on_change,
            confine,
            routes,
            admin: AdminConfig { listen: spec.admin.admin.clone(), is_usual: false },
            log,
        })
    }
}

/// The listeners of `--listen-http`. They redirect to the named port or, without one, to `https`, the port of
/// the first `--listen`.
fn without_tls(
    spec: &HttpsSpec,
    template: &ListenerConfig,
    https: Option<u16>,
    problems: &mut Problems,
) -> Vec<ListenerConfig> {
    let place = OptionName("listen-http");
    // The default may be written anywhere.
    if spec.listen_http.is_empty() && spec.on_http.is_some_and(|wanted| wanted != OnHttp::default()) {
        problems.add(Problem::needs("on-http", "listen-http", "[ADDR]:PORT"));
    }
    let redirect = match spec.on_http.unwrap_or_default() {
        OnHttp::Redirect(port) => port.or(https),
        OnHttp::Serve => None,
    };
    let demands_certificates =
        |tls: &TlsConfig| tls.client_ca.is_some() && tls.client_cert == ClientCert::Required;
    let serves = !spec.listen_http.is_empty() && spec.on_http == Some(OnHttp::Serve);
    if serves && template.tls.as_ref().is_some_and(demands_certificates) {
        problems.add(Problem::at(
            "on-http serve",
            "with --client-ca each client has to show a certificate, which it can't without TLS; expected --on-http redirect, or \
             --client-cert optional",
        ));
    }
    if !spec.listen_http.is_empty() && redirect == Some(0) {
        let expected = "it redirects to the port of --listen, which must be known; expected a port other than 0 there, or --on-http \
                        redirect:PORT";
        problems.add(Problem::Value { place, value: String::new(), expected: expected.to_owned() });
    }
    let binds =
        spec.listen_http.iter().filter_map(|addr| problems.note(resolve::own_listener_of(addr, place)));
    let http = template.http.clone().map(|http| HttpConfig { redirect, ..http });
    binds.map(|bind| ListenerConfig { bind, tls: None, http: http.clone(), ..template.clone() }).collect()
}

/// One on VPP's stack by default: the gain of several threads there has not been measured.
fn workers(spec: &HttpsSpec) -> Option<NonZeroUsize> {
    let workers = spec.process.workers;
    match spec.stack.stack.unwrap_or_default() {
        Stack::Kernel => workers,
        Stack::Vpp => workers.or(Some(NonZeroUsize::MIN)),
    }
}

/// VPP's library opens files and starts threads of its own.
fn confine(spec: &HttpsSpec) -> Result<ConfineConfig, Problem> {
    let usual = match spec.stack.stack.unwrap_or_default() {
        Stack::Kernel => ConfineMode::Auto,
        Stack::Vpp => ConfineMode::Off,
    };
    ConfineConfig::of(&spec.process.confine, usual)
}

/// The kernel's rules have no effect on VPP, which has its own routes.
fn routes(spec: &HttpsSpec) -> Result<RoutesConfig, Problem> {
    let routes = RoutesConfig::of(&spec.routes, &RoutesConfig::default());
    match (spec.stack.stack.unwrap_or_default(), spec.routes.routes) {
        (Stack::Kernel, _) => Ok(routes),
        (Stack::Vpp, None | Some(RoutesMode::Manual)) => {
            Ok(RoutesConfig { mode: RoutesMode::Manual, ..routes })
        }
        (Stack::Vpp, Some(_)) => Err(Problem::at(
            "routes auto",
            "with --stack vpp the origin's replies are VPP's to route: `ip route add CLIENTS-PREFIX via local` in vppctl",
        )),
    }
}

fn listener(spec: &HttpsSpec, listen: &[ListenAddr], problems: &mut Problems) -> ListenerConfig {
    let common = ListenerConfig::default();
    let client_address = spec.client_address.unwrap_or_default();
    problems.note(origins::refuse_idle_tls(spec));
    let written = origins::origins(spec, problems);
    let origin = written.as_ref().map(|written| written.default.host.clone());
    let origin_tls = written.as_ref().and_then(|written| origins::tls(spec, &written.default));
    let mut http = HttpConfig::of(spec, client_address);
    (http.health, http.origins) = written.map(|written| (written.health, written.others)).unwrap_or_default();
    ListenerConfig {
        mark: spec.upstream.mark.unwrap_or_default(),
        backends: BackendsConfig { ipv4: origin.clone(), ipv6: origin },
        senders: problems.note(senders(spec)).unwrap_or_default(),
        header: HeaderLimits::of(&spec.senders, spec.wait.header_wait),
        claims: ClaimsConfig::of(&spec.senders, &PrefixSet::new(), false),
        on_conflict: spec.upstream.on_conflict.unwrap_or_default(),
        send_proxy: (client_address == ClientAddressConfig::Proxy).then_some(SendProxy::V2),
        send_tlv: spec.sent.send_tlv.clone(),
        timeouts: Timeouts {
            connect: spec.upstream.connect_timeout.unwrap_or(common.timeouts.connect),
            ..common.timeouts
        },
        max_per_client: spec.tls.max_per_client,
        tls_timeout: spec.tls.tls_timeout.unwrap_or(common.tls_timeout),
        tls: problems.note(tls(spec, listen)),
        origin_tls,
        http: Some(http),
        ..common
    }
}

/// Clients connect directly, from anywhere. Only if headers are read must the senders be listed.
fn senders(spec: &HttpsSpec) -> Result<SendersConfig, Problem> {
    let written = spec.senders.header.iter().find_map(|header| match header {
        HeaderOption::All(rule) => Some(*rule),
        HeaderOption::Some(_) => None,
    });
    let reads_headers = written.map_or(spec.senders.sender.is_some(), |rule| rule != HeaderRule::Forbid);
    let usual = if reads_headers { PrefixSet::loopback() } else { PrefixSet::any() };
    SendersConfig::of(&spec.senders, &[], (&usual, HeaderRule::Forbid))
}

/// Options about the authority need names for it.
fn acme(spec: &HttpsSpec) -> Result<AcmeConfig, Problem> {
    let config = AcmeConfig::of(&spec.authority)?;
    if spec.acme.is_empty() {
        return match spec.authority.given() {
            Some(option) => Err(Problem::needs(option, "acme", "NAME")),
            None => Ok(config),
        };
    }
    if spec.stack.stack.unwrap_or_default() == Stack::Vpp {
        return Err(Problem::at(
            "acme",
            "--stack vpp takes over the sockets to the authority, too; expected --tls-cert FILE with it",
        ));
    }
    Ok(config)
}

/// The versions of HTTP that clients may choose, in order of preference. A client that offers only HTTP/1.0
/// (`curl --http1.0`) would be refused if it were not listed.
fn tls(spec: &HttpsSpec, listen: &[ListenAddr]) -> Result<TlsConfig, Problem> {
    let offered: &[&str] =
        if spec.no_http2 { &["http/1.1", "http/1.0"] } else { &["h2", "http/1.1", "http/1.0"] };
    let alpn: Vec<_> = offered.iter().map(|&protocol| protocol.to_owned()).collect();
    TlsConfig::of(&spec.tls, &alpn, (&spec.acme, &spec.host), listen)?.ok_or_else(|| {
        Problem::at(
            "tls-cert FILE",
            "expected: clients of truepeer https speak TLS; or --acme NAME; for a first try: --tls-cert self",
        )
    })
}
