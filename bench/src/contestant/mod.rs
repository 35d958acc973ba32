//! The contestants. A contestant defines which loads it takes and how it is started between the load and the
//! backend. Everything else is the same for all.

mod command;
mod go_mmproxy;
mod haproxy;
mod https;
mod nginx;
mod truepeer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::ClientConfig;
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, Program, Running, find_program};

pub(crate) use command::Command;

use self::https::{Behind, Haproxy, Https};
use self::truepeer::{Attached, Via};
use crate::backend;
use crate::credentials::Credentials;
use crate::measure::cpu;
use crate::pin::Pin;
use crate::place::{Endpoints, Place};
use crate::stacks::{Case, Proxy, Stack};
use crate::suites::{Load, OriginKind, Suite, Transport};
use crate::tls;

/// How a contestant is placed between load and backend.
#[derive(Debug, Clone)]
enum Way {
    /// Not at all: the load connects to the backend and writes no header.
    Direct,
    /// `truepeer proxy` by default: sessions that last leave user space. With the path of its binary.
    TruepeerProxy(PathBuf),
    /// The same, but every session is relayed.
    TruepeerRelay(PathBuf),
    TruepeerAttach(PathBuf),
    TruepeerRun(PathBuf, Via),
    /// With its binary, if it is not the installed one; likewise NGINX.
    Haproxy(Option<PathBuf>),
    Nginx(Option<PathBuf>),
    /// With this value of GOMAXPROCS, if any.
    GoMmproxy(Option<&'static str>),
    Https(Https),
    /// All parties on a network stack.
    Stacked(Case),
    /// Any other, by its command line.
    Command(Command),
}

/// A contestant.
#[derive(Debug, Clone)]
pub(crate) struct Contestant {
    /// Its name on the command line.
    pub(crate) name: String,
    /// Its name in the tables.
    pub(crate) label: String,
    way: Way,
}

/// The contestant that all others are compared with.
pub(crate) const NO_PROXY: &str = "no-proxy";
/// `truepeer proxy` by default. The names of its other ways start with it.
pub(crate) const TRUEPEER: &str = "truepeer";
/// The contestant that determines the constant rate of the HTTPS loads.
pub(crate) const REFERENCE: &str = "nginx-https";
const TRUEPEER_HTTPS: &str = "truepeer-https";
const NO_PROXY_OF_STACKS: &str = "no-proxy-kernel";
const TRUEPEER_ON_VPP: &str = "truepeer-vpp";

/// The contestant that a suite's summary compares with the best of the others.
pub(crate) const fn own_of(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy | Suite::Hosts => TRUEPEER,
        Suite::Https => TRUEPEER_HTTPS,
        Suite::Stacks => TRUEPEER_ON_VPP,
    }
}

/// The contestant that a suite's contestants are compared with.
pub(crate) const fn baseline_of(suite: Suite) -> &'static str {
    match suite {
        Suite::Proxy | Suite::Hosts | Suite::Https => NO_PROXY,
        Suite::Stacks => NO_PROXY_OF_STACKS,
    }
}

/// Whether others are compared with it.
pub(crate) fn is_baseline(name: &str) -> bool {
    Suite::ALL.into_iter().any(|suite| baseline_of(suite) == name)
}

/// The part that all cells of a run share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Common<'a> {
    /// The network.
    pub(crate) place: &'a Place,
    /// The origin of the HTTPS loads.
    pub(crate) origin: OriginKind,
    /// Threads of the backend.
    pub(crate) threads: usize,
    /// The keys and certificates of the HTTPS loads, if there are any.
    pub(crate) credentials: Option<&'a Credentials>,
    /// The assignment of cores.
    pub(crate) pin: &'a Pin,
}

/// The programs of one cell.
pub(crate) struct Stand<'a> {
    /// The addresses; the entrance is the one that the load connects to.
    pub(crate) at: Endpoints,
    /// Whether connections must start with a header.
    pub(crate) header: bool,
    /// Its TLS parameters, if it uses TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The contestant's programs, stopped before the backend.
    programs: Vec<Running>,
    _attached: Option<Attached<'a>>,
    backend: Running,
    /// The contestant's program that has started the backend and runs beside it, if there is one.
    supervisor: Option<PathBuf>,
}

impl Stand<'_> {
    /// The contestant's CPU time so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let between = self.groups().into_iter().flat_map(cpu::members);
        let beside = self.supervisor.iter().flat_map(|program| {
            let family = cpu::members(self.backend.pid()).into_iter();
            family.filter(|&process| cpu::runs(process, program))
        });
        between.chain(beside).map(cpu::time_of).sum()
    }

    /// The process groups of the contestant.
    pub(crate) fn groups(&self) -> Vec<i32> {
        self.programs.iter().map(Running::pid).collect()
    }

    /// The last output of a program of the contestant that has ended.
    pub(crate) fn last_words(&self) -> Option<String> {
        let dead = self.programs.iter().find(|program| !program.is_alive())?;
        Some(reason_in(&dead.log()).to_owned())
    }
}

/// The reason in a log: Go's panics start with it and end with a stack; its loggers wrap it.
fn reason_in(log: &str) -> &str {
    if let Some(panic) =
        log.lines().find(|line| line.starts_with("panic:") || line.starts_with("fatal error:"))
    {
        return panic;
    }
    let last = log.lines().last().unwrap_or("without a word");
    let wrapped = last.split_once("\"error\":\"").and_then(|(_, rest)| rest.split('"').next());
    wrapped.unwrap_or(last)
}

/// All contestants that take part by default, in the order of the tables.
pub(crate) fn standard(truepeer: PathBuf) -> Vec<Contestant> {
    let contestant =
        |name: &str, label: &str, way| Contestant { name: name.to_owned(), label: label.to_owned(), way };
    let stacked = |name: &str, label: &str, stack, proxy| {
        contestant(name, label, Way::Stacked(Case { stack, proxy, truepeer: truepeer.clone() }))
    };
    vec![
        contestant(NO_PROXY, "no proxy", Way::Direct),
        contestant("go-mmproxy", "go-mmproxy", Way::GoMmproxy(None)),
        contestant("go-mmproxy-1", "go-mmproxy GOMAXPROCS=1", Way::GoMmproxy(Some("1"))),
        contestant("haproxy", "HAProxy", Way::Haproxy(None)),
        contestant("nginx", "NGINX stream", Way::Nginx(None)),
        contestant(TRUEPEER, "truepeer proxy", Way::TruepeerProxy(truepeer.clone())),
        contestant("truepeer-relay", "truepeer proxy --splice off", Way::TruepeerRelay(truepeer.clone())),
        contestant("truepeer-attach", "truepeer attach", Way::TruepeerAttach(truepeer.clone())),
        contestant("truepeer-run", "truepeer run", Way::TruepeerRun(truepeer.clone(), Via::Auto)),
        contestant(
            "truepeer-notify",
            "truepeer run --via notify",
            Way::TruepeerRun(truepeer.clone(), Via::Notify),
        ),
        reference(),
        contestant("haproxy-https", "HAProxy https", Way::Https(Https::Haproxy(Haproxy::default()))),
        contestant("hitch-haproxy", "hitch + HAProxy", Way::Https(Https::HitchBefore(Behind::Haproxy))),
        contestant("hitch-nginx", "hitch + NGINX", Way::Https(Https::HitchBefore(Behind::Nginx))),
        contestant(TRUEPEER_HTTPS, "truepeer https", Way::Https(Https::Truepeer(truepeer.clone()))),
        contestant(
            "truepeer-https-h2",
            "truepeer https, HTTP/2 origin",
            Way::Https(Https::TruepeerByHttp2(truepeer.clone())),
        ),
        stacked(NO_PROXY_OF_STACKS, "no proxy, kernel", Stack::Kernel, Proxy::None),
        stacked("nginx-kernel", "NGINX, kernel", Stack::Kernel, Proxy::Nginx),
        stacked("truepeer-kernel", "truepeer https, kernel", Stack::Kernel, Proxy::Truepeer),
        stacked("no-proxy-vpp", "no proxy, VPP", Stack::Vpp, Proxy::None),
        stacked("nginx-vpp", "NGINX, VPP", Stack::Vpp, Proxy::Nginx),
        stacked(TRUEPEER_ON_VPP, "truepeer https, VPP", Stack::Vpp, Proxy::Truepeer),
    ]
}

/// Another HAProxy than the installed one; for HTTPS by HTTP/1.1 and by HTTP/2 with the origin.
pub(crate) fn other_haproxy(path: &Path) -> [Contestant; 3] {
    let https = |by_http2| Way::Https(Https::Haproxy(Haproxy { path: Some(path.to_owned()), by_http2 }));
    [
        ("other-haproxy", "other HAProxy", Way::Haproxy(Some(path.to_owned()))),
        ("other-haproxy-https", "other HAProxy https", https(false)),
        ("other-haproxy-https-h2", "other HAProxy https, HTTP/2 origin", https(true)),
    ]
    .map(|(name, label, way)| Contestant { name: name.to_owned(), label: label.to_owned(), way })
}

/// Another NGINX than the installed one.
pub(crate) fn other_nginx(path: &Path) -> [Contestant; 2] {
    let path = Some(path.to_owned());
    [
        ("other-nginx", "other NGINX stream", Way::Nginx(path.clone())),
        ("other-nginx-https", "other NGINX https", Way::Https(Https::Nginx(path))),
    ]
    .map(|(name, label, way)| Contestant { name: name.to_owned(), label: label.to_owned(), way })
}

/// The contestant called [`REFERENCE`].
pub(crate) fn reference() -> Contestant {
    Contestant {
        name: REFERENCE.to_owned(),
        label: "NGINX https".to_owned(),
        way: Way::Https(Https::Nginx(None)),
    }
}

impl Contestant {
    /// Whether a proxy or truepeer stands between load and backend, so that it can have a cost of its own.
    pub(crate) const fn is_between(&self) -> bool {
        !matches!(self.way, Way::Direct | Way::Stacked(Case { proxy: Proxy::None, .. }))
    }

    /// A contestant by its command line.
    pub(crate) fn by_command(command: Command) -> Self {
        Self { name: command.name.clone(), label: command.name.clone(), way: Way::Command(command) }
    }

    /// Whether it takes a load: some don't support headers in datagrams.
    pub(crate) fn carries(&self, load: Load) -> bool {
        match (&self.way, load.transport()) {
            // They run on the backend's host, so there is no third host.
            (Way::TruepeerAttach(_) | Way::TruepeerRun(..), _) if load.is_over_hosts() => false,
            (Way::Command(command), _) if load.is_over_hosts() && command.starts_the_backend() => false,
            (Way::Stacked(_), transport) => transport == Transport::Stacked,
            (_, Transport::Stacked) => false,
            (Way::Direct, _) => true,
            // hitch leaves HTTP/2 to the program behind it, which is not told.
            (Way::Https(Https::HitchBefore(_)), _) if load.is_http2() => false,
            (Way::Https(_), transport) => transport == Transport::Https,
            (Way::Command(command), transport) => command.carries(transport),
            (_, Transport::Https) => false,
            (_, Transport::Tcp) => true,
            // HAProxy doesn't support UDP. NGINX sends PROXY headers over UDP but
            // can't receive them. truepeer run concerns accept().
            (
                Way::Haproxy(_) | Way::Nginx(_) | Way::TruepeerRun(..) | Way::TruepeerRelay(_),
                Transport::Udp,
            ) => false,
            (Way::TruepeerProxy(_) | Way::TruepeerAttach(_) | Way::GoMmproxy(_), Transport::Udp) => true,
        }
    }

    /// Whether it is truepeer, in any way.
    pub(crate) fn is_truepeer(&self) -> bool {
        self.name.starts_with(TRUEPEER)
    }

    /// Whether all bytes pass through its program between load and backend.
    pub(crate) fn is_relay(&self) -> bool {
        match &self.way {
            Way::Direct | Way::TruepeerAttach(_) | Way::TruepeerRun(..) => false,
            Way::TruepeerProxy(_) | Way::TruepeerRelay(_) | Way::Haproxy(_) | Way::Nginx(_) => true,
            Way::GoMmproxy(_) | Way::Https(_) => true,
            Way::Stacked(case) => case.proxy != Proxy::None,
            Way::Command(command) => !command.starts_the_backend(),
        }
    }

    /// The parties that it starts on their own network stack, if it does that.
    pub(crate) fn on_a_stack(&self) -> Option<&Case> {
        if let Way::Stacked(case) = &self.way { Some(case) } else { None }
    }

    /// What it lacks on this machine, if anything.
    pub(crate) fn missing(&self) -> Option<String> {
        let program = |name: &str| {
            find_program(name)
                .is_none()
                .then(|| format!("{name} is neither unpacked (make servers) nor installed"))
        };
        match &self.way {
            Way::Direct | Way::Command(_) => None,
            Way::TruepeerAttach(_) if ByAttach::missing().is_some() => ByAttach::missing().map(str::to_owned),
            Way::TruepeerProxy(path)
            | Way::TruepeerRelay(path)
            | Way::TruepeerAttach(path)
            | Way::TruepeerRun(path, _) => (!path.exists())
                .then(|| format!("{} does not exist (cargo build -p truepeer)", path.display())),
            Way::Haproxy(None) => program("haproxy"),
            Way::Haproxy(Some(path)) => program(&path.to_string_lossy()),
            Way::Nginx(None) => program("nginx").or_else(|| nginx::missing_module(None)),
            Way::Nginx(Some(path)) => {
                program(&path.to_string_lossy()).or_else(|| nginx::missing_module(Some(path)))
            }
            Way::GoMmproxy(_) => program("go-mmproxy"),
            Way::Https(https) => https.missing(),
            Way::Stacked(case) => case.missing(),
        }
    }

    /// Its version, as it reports it.
    pub(crate) fn version(&self, bed: &Bed) -> Option<String> {
        match &self.way {
            Way::Direct => None,
            Way::TruepeerProxy(path)
            | Way::TruepeerRelay(path)
            | Way::TruepeerAttach(path)
            | Way::TruepeerRun(path, _) => Some(truepeer::version(bed, path)),
            Way::Haproxy(path) => Some(haproxy::version(bed, path.as_deref())),
            Way::Nginx(path) => Some(nginx::version(bed, path.as_deref())),
            Way::GoMmproxy(_) => Some(go_mmproxy::version()),
            Way::Https(https) => Some(https.version(bed)),
            Way::Stacked(case) => case.version(bed),
            Way::Command(command) => Some(format!("`{}`", command.text)),
        }
    }

    /// Starts backend and contestant, and waits until they serve. To be called on the load's host.
    pub(crate) fn stand_up<'a>(
        &self,
        bed: &'a Bed,
        common: Common<'_>,
        load: Load,
    ) -> anyhow::Result<Stand<'a>> {
        let (kind, transport, credentials) =
            (load.backend(common.origin), load.transport(), common.credentials);
        let (place, at) = (common.place, common.place.endpoints());
        let backend = backend::program(bed, kind, at, common.threads, credentials)?;
        let backend = place.on_the_server(self.around(backend, at, transport)).start(bed)?;
        backend::wait_ready(&backend, kind, at)?;
        let attached = match &self.way {
            Way::TruepeerAttach(path) => Some(Attached::make(bed, path, transport)?),
            _ => None,
        };
        if self.needs_routes() {
            place.route_replies()?;
        }
        let between = self.between(bed, at, transport, credentials)?;
        let entrance = if between.is_empty() { at.backend } else { at.entrance };
        common.pin.for_contestant()?;
        let can_splice = ByAttach::missing().is_none();
        let programs = between.into_iter().map(|(program, address)| {
            let running = start(&place.on_the_relay(program), address, bed, transport)?;
            if matches!(self.way, Way::TruepeerProxy(_)) && transport == Transport::Tcp && can_splice {
                running.wait_for_log(truepeer::MAY_LEAVE)?;
            }
            Ok(running)
        });
        let programs = programs.collect::<anyhow::Result<Vec<_>>>()?;
        common.pin.for_others()?;
        Ok(Stand {
            at: Endpoints { entrance, ..at },
            header: !matches!(self.way, Way::Direct) && transport != Transport::Https,
            tls: if transport == Transport::Https {
                let credentials = credentials.context("certificates")?;
                let own = if entrance == at.backend { &credentials.origin } else { &credentials.entrance };
                Some(tls::client(&own.der, load.is_http2())?)
            } else {
                None
            },
            programs,
            _attached: attached,
            backend,
            supervisor: match &self.way {
                Way::TruepeerRun(path, Via::Notify) => Some(path.clone()),
                _ => None,
            },
        })
    }

    /// The backend, started by the contestant if that is its way.
    fn around(&self, backend: Program, at: Endpoints, transport: Transport) -> Program {
        match &self.way {
            Way::TruepeerRun(path, via) => truepeer::run(path, *via, backend),
            Way::Command(command) if command.starts_the_backend() => command.around(backend, at, transport),
            _ => backend,
        }
    }

    /// The contestant's programs between load and backend, each with its address.
    fn between(
        &self,
        bed: &Bed,
        at: Endpoints,
        transport: Transport,
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<Vec<(Program, SocketAddr)>> {
        let program = match &self.way {
            Way::Direct | Way::TruepeerAttach(_) | Way::TruepeerRun(..) | Way::Stacked(_) => {
                return Ok(Vec::new());
            }
            Way::Command(command) if command.starts_the_backend() => return Ok(Vec::new()),
            Way::Https(https) => return https.programs(bed, credentials.context("certificates")?),
            Way::TruepeerProxy(path) => truepeer::proxy(path, at, transport),
            Way::TruepeerRelay(path) => truepeer::relay(path, at, transport),
            Way::Haproxy(path) => haproxy::program(bed, path.as_deref(), at)?,
            Way::Nginx(path) => nginx::program(bed, path.as_deref(), at)?,
            Way::GoMmproxy(threads) => go_mmproxy::program(*threads, at, transport),
            Way::Command(command) => command.program(at, transport, credentials),
        };
        Ok(vec![(program, at.entrance)])
    }

    /// Whether the classic rule and route are set for it: it doesn't create its own.
    fn needs_routes(&self) -> bool {
        match &self.way {
            Way::Haproxy(_) | Way::Nginx(_) | Way::GoMmproxy(_) => true,
            Way::Command(command) => !command.starts_the_backend(),
            _ => false,
        }
    }
}

fn start(program: &Program, address: SocketAddr, bed: &Bed, transport: Transport) -> anyhow::Result<Running> {
    let running = program.start(bed)?;
    match transport {
        Transport::Tcp | Transport::Https | Transport::Stacked => running.wait_listening(address)?,
        Transport::Udp => running.wait_bound_udp(address)?,
    }
    Ok(running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_in_go_s_logs() {
        let json =
            r#"{"level":"error","msg":"failed","error":"accept4: too many open files","stacktrace":"main"}"#;
        assert_eq!(reason_in(json), "accept4: too many open files");
        assert_eq!(reason_in("started\npanic: index out of range\ngoroutine 1"), "panic: index out of range");
        assert_eq!(reason_in("one\ntwo"), "two");
    }
}
