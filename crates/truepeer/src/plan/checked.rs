//! A plan with all its files, names and certificates read, ready to be carried out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use truepeer_https::tls::ServerTls;
use truepeer_policy::{BackendAddr, Policy};

use super::Config;
use super::datagrams;
use super::key::ListenerKey;
use super::listener::ListenerConfig;
use super::origins::CheckedOrigin;
use super::place::ProblemPlace;
use super::problem::{Problem, Problems};
use super::read::Read;
use super::tls::TlsConfig;
use crate::spec::{Family, Protocol, SendProxy};

/// A checked [`Config`].
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) listeners: Vec<Arc<CheckedListener>>,
}

/// A listener, its rules and its certificates.
#[derive(Debug)]
pub(crate) struct CheckedListener {
    pub(crate) key: ListenerKey,
    pub(crate) config: ListenerConfig,
    pub(crate) read: Read,
    pub(crate) policy: Arc<Policy>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// The backends, or the default origin.
    pub(crate) origin: CheckedOrigin,
    /// The origins for some hosts and paths.
    pub(crate) origins: Vec<CheckedOrigin>,
}

/// The listeners of one process.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// All of them.
    binds: Vec<SocketAddr>,
    /// Those that are checked already.
    keys: Vec<ListenerKey>,
}

impl Beside {
    pub(crate) fn of(binds: Vec<SocketAddr>) -> Self {
        Self { binds, keys: Vec::new() }
    }
}

impl Config {
    /// Reads every file and resolves every name, once, so that errors are reported before anything is bound.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<Checked, Problems> {
        self.check_beside(&mut Beside::of(self.binds()))
    }

    /// The same for one of several entries.
    pub(super) fn check_beside(&self, beside: &mut Beside) -> Result<Checked, Problems> {
        if self.listeners.is_empty() {
            return Err(Problem::NoListener.into());
        }
        let mut problems = Problems::default();
        for listener in &self.listeners {
            problems.note(listener.refuse_contradictions());
        }
        // Files of a contradictory entry would only add to it.
        problems.none(())?;
        let mut problems = Problems::default();
        let checked: Vec<_> =
            self.listeners.iter().filter_map(|listener| listener.check(beside, &mut problems)).collect();
        problems.none(Checked { listeners: checked })
    }
}

impl ListenerConfig {
    /// `None`: something is wrong, which is noted.
    fn check(&self, beside: &mut Beside, problems: &mut Problems) -> Option<Arc<CheckedListener>> {
        let (protocol, address) = (self.protocol, self.bind);
        let is_there = |other: &&ListenerKey| (other.protocol, other.address) == (protocol, address);
        let copy = beside.keys.iter().filter(is_there).count();
        let key = ListenerKey { protocol, address, copy };
        beside.keys.push(key);
        if copy > 0 && address.port() != 0 {
            problems.add(Problem::ListenTwice(address));
        }
        // Read for comparison first: a file that changes meanwhile then differs at the next reload.
        let read = self.read(problems);
        let fail = |error| Problem::tls(error, self.http.is_some());
        let tls = problems.note(self.tls.as_ref().map(TlsConfig::read).transpose().map_err(fail));
        let read_origin = |tls| CheckedOrigin::read(tls, self.http.is_some());
        let origin = problems.note(read_origin(self.origin_tls.as_ref()));
        let (origin, tls, read) = (origin?, tls?, read?);
        let origin = origin(read.backends);
        let mut origins = Vec::new();
        for (other, backends) in self.origins().zip(&read.origins) {
            origins.push(problems.note(read_origin(other.tls.as_ref()))?(*backends));
            for backend in [backends.ipv4, backends.ipv6].into_iter().flatten() {
                problems.note(refuse_loop(ProblemPlace::Option("origin"), backend, self.bind));
            }
        }
        let policy = Arc::new(problems.note(self.policy(&read, &beside.binds))?);
        for (backend, family) in [(read.backends.ipv4, Family::Ipv4), (read.backends.ipv6, Family::Ipv6)] {
            if let Some(backend) = backend {
                problems.note(refuse_loop(self.backend_place(family), backend, self.bind));
            }
        }
        let config = self.clone();
        Some(Arc::new(CheckedListener { key, config, read, policy, tls, origin, origins }))
    }

    fn refuse_contradictions(&self) -> Result<(), Problem> {
        if self.protocol == Protocol::Udp {
            datagrams::refuse_tftp("listen", &self.bind, &[self.bind.port()])?;
            for (option, backend) in [("ipv4", &self.backends.ipv4), ("ipv6", &self.backends.ipv6)] {
                backend.iter().try_for_each(|to| datagrams::refuse_tftp(option, to, &[to.port()]))?;
            }
        }
        match (self.protocol, self.send_proxy) {
            (Protocol::Udp, Some(SendProxy::V1)) => Err(Problem::Version1OverUdp),
            (Protocol::Tcp, Some(SendProxy::Spp)) => Err(Problem::SppOverTcp),
            (Protocol::Udp, _) if self.tls.is_some() => {
                Err(Problem::TlsOverUdp { place: ProblemPlace::Option("tls-cert") })
            }
            (Protocol::Udp, _) if self.origin_tls.is_some() => {
                Err(Problem::TlsOverUdp { place: ProblemPlace::Option("origin-tls") })
            }
            _ => Ok(()),
        }
    }
}

impl Checked {
    /// The warnings for the operator, a sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> =
            self.listeners.iter().flat_map(|listener| listener.config.warnings(&listener.read)).collect();
        warnings.sort();
        warnings.dedup();
        warnings
    }
}

/// A wildcard listener has its port on each of this machine's own addresses; elsewhere another host may have it.
fn refuse_loop(place: ProblemPlace, backend: BackendAddr, listener: SocketAddr) -> Result<(), Problem> {
    let bound = BackendAddr::new(listener);
    let is_here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified() || is_own(ip);
    let takes_family = bound.ip().is_ipv6() || backend.ip().is_ipv4();
    let by_wildcard = bound.ip().is_unspecified() && takes_family && is_here(backend.ip());
    if bound.get().port() != 0
        && bound.get().port() == backend.get().port()
        && (bound == backend || by_wildcard)
    {
        return Err(Problem::Loop { place, backend, listener });
    }
    Ok(())
}

/// Whether an interface of this machine has `ip`: only then does a packet to it leave from it. Nothing is sent.
fn is_own(ip: IpAddr) -> bool {
    let unspecified =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let source_towards = |port| {
        let socket = UdpSocket::bind((unspecified, 0))?;
        socket.connect((ip, port))?;
        socket.local_addr()
    };
    source_towards(9).is_ok_and(|source| source.ip() == ip)
}
