//! A plan with all its files, names and certificates read, ready to be carried out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use truepeer_policy::{BackendAddr, Dialect, Policy, Source};
use truepeer_stream::tls::ServerTls;

use super::Config;
use super::datagrams;
use super::key::ListenerKey;
use super::listener::ListenerConfig;
use super::origins::CheckedOrigin;
use super::problem::{OptionName, Problem, Problems};
use super::read::Read;
use super::senders;
use super::sites::{self, Site};
use super::tls::TlsConfig;
use crate::spec::{Family, Protocol, SendProxy, UnknownHost};

/// A checked [`Config`].
#[derive(Debug)]
pub struct Checked {
    pub listeners: Vec<Arc<CheckedListener>>,
}

/// A listener, its rules and its certificates.
#[derive(Debug, Clone)]
pub struct CheckedListener {
    pub key: ListenerKey,
    /// IPV6_V6ONLY: another listener of the process has its port for IPv4.
    pub v6_only: bool,
    pub config: ListenerConfig,
    pub(crate) read: Read,
    pub policy: Arc<Policy>,
    pub tls: Option<Arc<ServerTls>>,
    /// The backends, or the default origin.
    pub origin: CheckedOrigin,
    /// The origins for some hosts and paths.
    pub origins: Vec<CheckedOrigin>,
    /// The names that clients ask for in a handshake (SNI).
    pub names: Vec<String>,
    /// Further sites on the same address, once they are [joined](super::join).
    pub further: Vec<Arc<CheckedListener>>,
}

/// The listeners of one process.
#[derive(Debug, Default)]
pub struct Beside {
    /// All of them.
    binds: Vec<(Protocol, SocketAddr)>,
    /// Those that are checked already.
    checked: Vec<Seen>,
    /// Those of them in which nothing is wrong.
    whole: Vec<Arc<CheckedListener>>,
    /// The number of the entry that is checked.
    entry: usize,
}

/// A listener that is checked already.
#[derive(Debug)]
struct Seen {
    key: ListenerKey,
    shares_port: bool,
    entry: usize,
    has_sites: bool,
}

impl Beside {
    pub fn of(binds: Vec<(Protocol, SocketAddr)>) -> Self {
        Self { binds, ..Self::default() }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.binds.iter().map(|(_, address)| *address).collect()
    }

    /// Whether another listener has this one's port for IPv4. The wildcard of IPv6 then leaves IPv4 to it, as
    /// in NGINX and HAProxy: otherwise neither can be opened while the other is open.
    fn has_ipv4(&self, key: &ListenerKey) -> bool {
        let (wanted, port) = (key.protocol, key.address.port());
        let is_ipv4_of_port = |(protocol, other): &(Protocol, SocketAddr)| {
            *protocol == wanted && other.port() == port && other.ip().to_canonical().is_ipv4()
        };
        key.address.ip() == Ipv6Addr::UNSPECIFIED && port != 0 && self.binds.iter().any(is_ipv4_of_port)
    }
}

impl Config {
    /// Reads every file and resolves every name, once, so that errors are reported before anything is bound.
    pub fn check(&self) -> Result<Checked, Problems> {
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
        beside.entry += 1;
        // Files of a contradictory entry would only add to it.
        problems.none(())?;
        let mut problems = Problems::default();
        let checked: Vec<_> =
            self.listeners.iter().filter_map(|listener| listener.check(beside, &mut problems)).collect();
        problems.none(Checked { listeners: checked })
    }
}

/// `::ffff:127.0.0.1` is 127.0.0.1 to the kernel.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // Of a link-local address the interface counts.
        IpAddr::V6(_) => address,
    }
}

impl ListenerConfig {
    /// `None`: something is wrong, which is noted.
    fn check(&self, beside: &mut Beside, problems: &mut Problems) -> Option<Arc<CheckedListener>> {
        let (protocol, address) = (self.protocol, self.bind);
        let is_there = |other: &&Seen| {
            (other.key.protocol, canonical(other.key.address)) == (protocol, canonical(address))
        };
        let same = || beside.checked.iter().filter(is_there);
        let key = ListenerKey { protocol, address, copy: same().count() };
        let (shares_port, has_sites) = (self.shares_port(), self.http.is_some());
        let is_site = |other: &Seen| other.has_sites && other.entry != beside.entry;
        let is_shared = key.copy > 0 && address.port() != 0;
        let is_site = has_sites && same().all(is_site);
        if is_shared && !is_site {
            problems.add(Problem::ListenTwice { listener: address, is_proxy: !has_sites });
        } else if is_shared {
            // What sites can't share is found below.
        } else if let Some(other) = beside
            .checked
            .iter()
            .find(|other| key.is_within(&other.key) && !(shares_port && other.shares_port))
        {
            let other = other.key.address;
            let (one, all) = if address.ip().is_unspecified() { (other, address) } else { (address, other) };
            problems.add(Problem::ListenWithin(one, all));
        }
        beside.checked.push(Seen { key, shares_port, entry: beside.entry, has_sites });
        let v6_only = beside.has_ipv4(&key);
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
                problems.note(refuse_loop(OptionName("origin"), backend, self.bind));
            }
        }
        let policy = Arc::new(problems.note(self.policy(&read, &beside.addresses()))?);
        for (backend, family) in [(read.backends.ipv4, Family::Ipv4), (read.backends.ipv6, Family::Ipv6)] {
            if let Some(backend) = backend {
                problems.note(refuse_loop(self.backend_place(family), backend, self.bind));
                problems.note(self.refuse_any_port_elsewhere(backend, family));
            }
        }
        let config = self.clone();
        let names = sites::names(&config, tls.as_deref());
        let further = Vec::new();
        let checked =
            CheckedListener { key, v6_only, config, read, policy, tls, origin, origins, names, further };
        if is_site {
            let earlier = beside.whole.iter().map(|one| one.as_site());
            problems.note(sites::refuse_beside(checked.as_site(), earlier))?;
        }
        let checked = Arc::new(checked);
        beside.whole.push(Arc::clone(&checked));
        Some(checked)
    }

    /// A backend that keeps every port is on this host. From another one, the rules for replies would also take
    /// what its own connections to others send.
    fn refuse_any_port_elsewhere(&self, backend: BackendAddr, family: Family) -> Result<(), Problem> {
        let ip = backend.ip();
        if backend.get().port() != 0 || self.source() == Source::Any || is_here(ip) {
            return Ok(());
        }
        Err(Problem::Value {
            place: self.backend_place(family),
            value: format!(" {ip}"),
            expected: "a host without a port keeps the port that each connection came to, and has to be this one, so that no other \
                       traffic of that host is taken for replies; expected HOST:PORT, or --send-proxy v2"
                .to_owned(),
        })
    }

    /// Whether its sockets share an address with others (SO_REUSEPORT).
    fn shares_port(&self) -> bool {
        self.needs_https() || self.protocol == Protocol::Tcp && self.sockets.get() > 1
    }

    fn refuse_contradictions(&self) -> Result<(), Problem> {
        if self.protocol == Protocol::Udp {
            datagrams::refuse_tftp("listen", &self.bind, &[self.bind.port()])?;
            for (option, backend) in [("ipv4", &self.backends.ipv4), ("ipv6", &self.backends.ipv6)] {
                backend.iter().try_for_each(|to| datagrams::refuse_tftp(option, to, &[to.port()]))?;
            }
        }
        self.refuse_idle_tlvs()?;
        match (self.protocol, self.send_proxy) {
            (Protocol::Udp, Some(SendProxy::V1)) => Err(Problem::Version1OverUdp),
            (Protocol::Tcp, Some(SendProxy::Spp)) => Err(Problem::SppOverTcp),
            (Protocol::Udp, _) if self.tls.is_some() => {
                Err(Problem::TlsOverUdp { place: OptionName("tls-cert") })
            }
            (Protocol::Udp, _) if self.origin_tls.is_some() => {
                Err(Problem::TlsOverUdp { place: OptionName("origin-tls") })
            }
            _ => Ok(()),
        }
    }
}

impl ListenerConfig {
    /// TLVs that can't be sent or checked here.
    fn refuse_idle_tlvs(&self) -> Result<(), Problem> {
        senders::refuse_twice_sent(&self.send_tlv)?;
        if !self.send_tlv.is_empty() && self.send_proxy != Some(SendProxy::V2) {
            return Err(match self.http {
                Some(_) => Problem::needs("send-tlv", "client-address", "proxy"),
                None => Problem::needs("send-tlv", "send-proxy", "v2"),
            });
        }
        if self.protocol == Protocol::Tcp {
            return Ok(());
        }
        let why = "a datagram's header is made once for its flow, and a digest holds for 30 s";
        senders::refuse_keyed("send-tlv", self.send_tlv.iter(), why)?;
        self.senders.refuse_keyed(why)?;
        if self.udp.dialect == Dialect::Spp && !self.senders.require_tlv.is_empty() {
            return Err(Problem::at(
                "require-tlv",
                "--udp-dialect spp has no TLVs; expected another dialect",
            ));
        }
        Ok(())
    }
}

impl Checked {
    /// The warnings for the operator, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> =
            self.listeners.iter().flat_map(|listener| listener.config.warnings(&listener.read)).collect();
        warnings.extend(
            self.listeners.iter().filter_map(|one| sites::warning_of_names(&one.names, one.tls.as_deref()?)),
        );
        warnings.extend(self.in_vain());
        warnings.sort();
        warnings.dedup();
        warnings
    }
}

impl Checked {
    /// Times of the other transport: nothing would end by them.
    fn in_vain(&self) -> Vec<String> {
        let any = |is_it: fn(&ListenerConfig) -> bool| self.listeners.iter().any(|one| is_it(&one.config));
        let (has_tcp, has_udp) =
            (any(|it| it.protocol == Protocol::Tcp), any(|it| it.protocol == Protocol::Udp));
        let cases = [
            (
                !has_udp && any(|it| it.udp.close_after.is_some()),
                "--close-after has no effect: no listener takes UDP; --idle-timeout ends silent TCP sessions",
            ),
            (
                !has_tcp && any(|it| it.timeouts.idle.is_some()),
                "--idle-timeout has no effect: no listener takes TCP; --close-after forgets silent flows",
            ),
        ];
        cases.into_iter().filter(|(is_vain, _)| *is_vain).map(|(_, text)| text.to_owned()).collect()
    }
}

/// Sites that share an address become one listener, which the first one's sockets serve.
pub fn join(listeners: Vec<Arc<CheckedListener>>) -> Vec<Arc<CheckedListener>> {
    let mut joined: Vec<Arc<CheckedListener>> = Vec::new();
    for listener in listeners {
        let is_first = listener.key.copy == 0 || listener.key.address.port() == 0;
        let first = joined.iter_mut().find(|first| {
            !is_first
                && (first.key.protocol, first.key.address) == (listener.key.protocol, listener.key.address)
        });
        match first {
            // Each redirects to the same port.
            Some(_) if listener.tls.is_none() => {}
            Some(first) => Arc::make_mut(first).further.push(listener),
            None => joined.push(listener),
        }
    }
    joined
}

impl CheckedListener {
    fn as_site(&self) -> Site<'_> {
        Site { key: self.key, config: &self.config, names: &self.names }
    }

    /// The name that an operator knows the site by.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// It, and the sites that share its address.
    pub(super) fn and_further(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.further.iter().map(|site| &**site))
    }

    /// Its sites, if clients choose among them by name.
    pub fn sites(&self) -> Option<Vec<&Self>> {
        let is_chosen = !self.further.is_empty() || self.refuses_unknown_hosts();
        (is_chosen && self.tls.is_some()).then(|| self.and_further().collect())
    }

    /// Whether a client that asks for no site's name is refused.
    pub fn refuses_unknown_hosts(&self) -> bool {
        let refuses = |site: &Self| {
            site.config.http.as_ref().is_some_and(|http| http.unknown_host == Some(UnknownHost::Refuse))
        };
        self.and_further().any(refuses)
    }
}

/// A wildcard listener has its port on each of this machine's own addresses; elsewhere another host may have
/// it.
fn refuse_loop(place: OptionName, backend: BackendAddr, listener: SocketAddr) -> Result<(), Problem> {
    let bound = BackendAddr::new(listener);
    if bound.get().port() == 0 || bound.get().port() != backend.get().port() {
        return Ok(());
    }
    let takes_family = bound.ip().is_ipv6() || backend.ip().is_ipv4();
    let by_wildcard = || bound.ip().is_unspecified() && takes_family && is_here(backend.ip());
    if bound == backend || by_wildcard() {
        return Err(Problem::Loop { place, backend, listener });
    }
    Ok(())
}

/// Whether packets to `ip` come to this machine: an interface has it, so they also leave from it. Nothing is
/// sent. On VPP's stack each question costs two descriptors for good, so it comes last.
fn is_here(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let unspecified =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let source_towards = |port| {
        let socket = UdpSocket::bind((unspecified, 0))?;
        socket.connect((ip, port))?;
        socket.local_addr()
    };
    source_towards(9).is_ok_and(|source| source.ip() == ip)
}
