//! One listener: its address, the senders that it admits, and the destinations of sessions.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_policy::{
    BackendAddr, Backends, Delivery, Destinations, Dialect, Dynamic, HeaderRule, HeaderTimes, Nat64Prefix,
    OnConflict, Policy, Source,
};
use truepeer_proto::{Transport, Version};
use truepeer_session::settings::{self, UdpSettings};

use super::datagrams;
use super::http::HttpConfig;
use super::origins::OriginConfig;
use super::problem::{OptionName, Problem, Problems};
use super::read::{Read, certificates};
use super::senders::{ClaimsConfig, SendersConfig};
use super::tls::{OriginTlsConfig, TlsConfig};
use super::{resolve, senders, speaks_first};
use crate::spec::{
    ClientAddressConfig, Family, HostPort, Protocol, SecretTlv, SendProxy, SendersSpec, SpliceAfter,
    SpliceLinger, SpliceMode, defaults, text,
};

/// One listener. A session's rules are in `ListenerConfig::policy`; the rest is for opening the sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    pub bind: SocketAddr,
    pub protocol: Protocol,
    /// IP_TRANSPARENT on the listening socket (TPROXY).
    pub transparent: bool,
    /// SO_REUSEPORT sockets on `bind`.
    pub sockets: NonZeroU16,
    /// SO_MARK of upstream sockets; 0: none.
    pub mark: u32,
    pub backends: BackendsConfig,
    /// The backend is the header's destination.
    pub dynamic: Option<DynamicConfig>,
    pub senders: SendersConfig,
    pub header: HeaderLimits,
    pub claims: ClaimsConfig,
    #[serde(with = "text::one")]
    pub on_conflict: OnConflict,
    #[serde(with = "text::maybe")]
    pub nat64_prefix: Option<Nat64Prefix>,
    pub pseudo_ipv4: bool,
    pub send_proxy: Option<SendProxy>,
    /// TLVs of that header.
    pub send_tlv: Vec<SecretTlv>,
    pub timeouts: Timeouts,
    /// The limit of connections for one client; 0: none, `None`: none, or with TLS a share of all sessions.
    pub max_per_client: Option<usize>,
    pub splice: SpliceConfig,
    pub udp: UdpConfig,
    /// How long a TLS handshake may take, with clients and with backends.
    #[serde(with = "text::duration")]
    pub tls_timeout: Duration,
    /// TLS with clients, if used.
    pub tls: Option<TlsConfig>,
    /// TLS with backends, if used.
    pub origin_tls: Option<OriginTlsConfig>,
    /// HTTP, if requests are passed on one by one.
    pub http: Option<HttpConfig>,
}

/// The backends, by the client's family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendsConfig {
    /// `None`: IPv4 clients are refused.
    #[serde(with = "text::maybe")]
    pub ipv4: Option<HostPort>,
    /// `None`: IPv6 clients are refused.
    #[serde(with = "text::maybe")]
    pub ipv6: Option<HostPort>,
}

/// The permitted destinations of headers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicConfig {
    #[serde(with = "text::destinations")]
    pub allow: Destinations,
}

/// When sessions leave user space.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpliceConfig {
    pub(crate) mode: SpliceMode,
    #[serde(with = "text::one")]
    pub(crate) after: SpliceAfter,
    pub linger: SpliceLinger,
}

/// The UDP part of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UdpConfig {
    /// The dialect of incoming datagrams, and of those that `send_proxy` writes.
    #[serde(with = "text::one")]
    pub dialect: Dialect,
    /// A flow is forgotten after this silence; `None`: as suits the dialect's usual senders.
    #[serde(with = "text::maybe_duration")]
    pub close_after: Option<Duration>,
}

/// How long to wait for a header, and for how much of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeaderLimits {
    #[serde(with = "text::duration")]
    pub timeout: Duration,
    /// How long a sender may be silent if its header is optional.
    #[serde(with = "text::duration")]
    pub wait: Duration,
    pub max_bytes: usize,
}

/// How long a session may stay in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Both directions silent; `None`: unlimited.
    #[serde(with = "text::maybe_duration")]
    pub idle: Option<Duration>,
    #[serde(with = "text::duration")]
    pub connect: Duration,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, defaults::LISTEN.1)),
            protocol: Protocol::Tcp,
            transparent: false,
            sockets: NonZeroU16::MIN,
            mark: 0,
            backends: BackendsConfig::default(),
            dynamic: None,
            senders: SendersConfig::default(),
            header: HeaderLimits::default(),
            claims: ClaimsConfig::default(),
            on_conflict: OnConflict::Ephemeral,
            nat64_prefix: None,
            pseudo_ipv4: false,
            send_proxy: None,
            send_tlv: Vec::new(),
            timeouts: Timeouts::default(),
            splice: SpliceConfig::default(),
            max_per_client: None,
            udp: UdpConfig::default(),
            tls_timeout: defaults::TLS_TIMEOUT,
            tls: None,
            origin_tls: None,
            http: None,
        }
    }
}

impl BackendsConfig {
    /// A backend without a port has this one.
    pub(super) fn keep_port(&mut self, port: u16) {
        for backend in
            [&mut self.ipv4, &mut self.ipv6].into_iter().flatten().filter(|backend| backend.port() == 0)
        {
            *backend = HostPort::new(backend.host(), port);
        }
    }
}

impl Default for BackendsConfig {
    fn default() -> Self {
        let usual = |(host, port)| Some(HostPort::new(host, port));
        Self { ipv4: usual(defaults::IPV4), ipv6: usual(defaults::IPV6) }
    }
}

impl Default for HeaderLimits {
    fn default() -> Self {
        let HeaderTimes { timeout, wait } = HeaderTimes::default();
        Self { timeout, wait, max_bytes: defaults::HEADER_MAX }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { idle: None, connect: defaults::CONNECT_TIMEOUT }
    }
}

impl ListenerConfig {
    /// The rules of this listener's sessions, with the data read for it. `own_listeners`: the addresses of
    /// all listeners of this program.
    pub(crate) fn policy(&self, read: &Read, own_listeners: &[SocketAddr]) -> Result<Policy, Problem> {
        Ok(Policy {
            transport: match self.protocol {
                Protocol::Tcp => Transport::Stream,
                Protocol::Udp => Transport::Dgram,
            },
            senders: self.senders.policy(&read.allow, &read.secrets.0)?,
            claims: self.claims.policy(&read.deny),
            delivery: Delivery {
                backends: read.backends,
                dynamic: self.dynamic.as_ref().map(|dynamic| Dynamic { allow: dynamic.allow.clone() }),
                own_listeners: own_listeners.to_vec(),
                source: self.source(),
                send_proxy: self.send_proxy.map(|version| match version {
                    SendProxy::V1 => Version::V1,
                    // The limits of a stream's header; for datagrams the dialect determines them.
                    SendProxy::V2 | SendProxy::Spp => Version::V2,
                }),
                send_tlvs: senders::sent_tlvs(&self.send_tlv, &read.secrets.1),
                nat64_prefix: self.nat64_prefix,
                pseudo_ipv4: self.pseudo_ipv4,
                on_conflict: self.on_conflict,
            },
            bans: OnceLock::new(),
        })
    }

    /// When sessions and flows leave user space; `None`: never. truepeer itself must do TLS.
    pub fn splice_after(&self) -> Option<settings::SpliceAfter> {
        let may = self.splice.mode != SpliceMode::Off && !self.needs_https();
        let SpliceAfter { bytes, age } = self.splice.after;
        may.then_some(settings::SpliceAfter { is_marked: self.mark != 0, bytes, age })
    }

    /// Whether any session may leave user space.
    pub fn may_splice(&self) -> bool {
        self.protocol == Protocol::Tcp && self.may_leave()
    }

    /// Whether any UDP flow may leave user space.
    pub fn may_offload_flows(&self) -> bool {
        self.protocol == Protocol::Udp && self.may_leave() && self.send_proxy.is_none()
    }

    fn may_leave(&self) -> bool {
        self.splice_after().is_some_and(|after| !after.is_marked)
    }

    /// Whether the engine for TLS and HTTP serves it.
    pub fn needs_https(&self) -> bool {
        self.tls.is_some() || self.origin_tls.is_some() || self.http.is_some()
    }

    /// The names that an authority issues its certificate for.
    pub(super) fn acme_names(&self) -> Option<&[String]> {
        self.tls.as_ref().map(|tls| tls.acme.as_slice()).filter(|names| !names.is_empty())
    }

    /// The source address that backends see.
    pub fn source(&self) -> Source {
        let is_client = match &self.http {
            Some(http) => http.client_address == ClientAddressConfig::Transparent,
            None => self.send_proxy.is_none(),
        };
        if is_client { Source::Client } else { Source::Any }
    }

    /// The option that names the backend.
    pub(super) fn backend_place(&self, family: Family) -> OptionName {
        OptionName(match (&self.http, family) {
            (Some(_), _) => "origin",
            (None, Family::Ipv4) => "ipv4",
            (None, Family::Ipv6) => "ipv6",
        })
    }

    /// The files to read: lists, certificates, keys, authorities.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let lists = self.senders.allow_files.iter().map(|file| file.path.as_path());
        let lists = lists.chain(self.claims.deny_files.iter().map(PathBuf::as_path));
        let required = self.senders.require_tlv.iter().map(|required| &required.tlv);
        let lists = lists.chain(required.chain(&self.send_tlv).map(|tlv| tlv.file.as_path()));
        let tls = self.tls.iter().flat_map(TlsConfig::files);
        lists.chain(tls).chain(self.all_origin_tls().flat_map(OriginTlsConfig::files))
    }

    /// Reads files and resolves names now. `None`: something is wrong, which is noted.
    pub(super) fn read(&self, problems: &mut Problems) -> Option<Read> {
        let allow = problems.note(self.senders.allowed());
        let deny = problems.note(self.claims.denied());
        let secrets = problems.note(self.senders.secrets());
        let sent = problems.note(senders::read_sent(&self.send_tlv));
        let backends = problems.note(self.resolve_backends());
        let origins = self.origins().filter_map(|origin| problems.note(resolve_origin(origin))).collect();
        let certificates = certificates(self.tls.as_ref(), self.all_origin_tls());
        let secrets = (secrets?, sent?);
        Some(Read { allow: allow?, deny: deny?, secrets, backends: backends?, origins, certificates })
    }

    /// The origins for some hosts and paths.
    pub(super) fn origins(&self) -> impl Iterator<Item = &OriginConfig> + Clone {
        self.http.iter().flat_map(|http| &http.origins)
    }

    fn all_origin_tls(&self) -> impl Iterator<Item = &OriginTlsConfig> + Clone {
        self.origin_tls.iter().chain(self.origins().filter_map(|origin| origin.tls.as_ref()))
    }

    /// Resolves the names.
    fn resolve_backends(&self) -> Result<Backends, Problem> {
        let resolve = |backend: &Option<HostPort>, family| {
            let resolve = |backend| resolve::backend(backend, self.backend_place(family), family);
            backend.as_ref().map(resolve).transpose()
        };
        Ok(Backends {
            ipv4: resolve(&self.backends.ipv4, Family::Ipv4)?,
            ipv6: resolve(&self.backends.ipv6, Family::Ipv6)?,
        })
    }

    /// Warnings of origins that must be dialled from the client's address but have no address of its family.
    fn missing_families(&self, read: &Read) -> Vec<String> {
        if self.http.is_none() || self.source() != Source::Client {
            return Vec::new();
        }
        let default =
            self.backends.ipv4.iter().map(|backend| (String::new(), backend.to_string(), read.backends));
        let others = self.origins().zip(&read.origins);
        let others = others.map(|(origin, read)| (origin.serves(), origin.backend.to_string(), *read));
        let mut warnings = Vec::new();
        for (serves, origin, backends) in default.chain(others) {
            let is_other = |backend: Option<BackendAddr>, is_ipv4| {
                backend.is_some_and(|backend| backend.ip().is_ipv4() != is_ipv4)
            };
            let family = match (is_other(backends.ipv4, true), is_other(backends.ipv6, false)) {
                (true, _) => "IPv4",
                (_, true) => "IPv6",
                _ => continue,
            };
            let (who, origin) = if serves.is_empty() {
                (format!("{family} clients are refused"), origin)
            } else {
                (format!("{family} clients get 502 for {serves}"), format!("{serves}={origin}"))
            };
            warnings.push(format!(
                "{who}: --origin {origin} has no {family} address, and --client-address transparent can't show them to the other \
                 family; give it one, or use --client-address forwarded or proxy"
            ));
        }
        warnings
    }

    /// The ports of its backends.
    pub fn backend_ports(&self) -> impl Iterator<Item = u16> {
        [&self.backends.ipv4, &self.backends.ipv6].into_iter().flatten().map(HostPort::port)
    }

    /// UDP: the listener's port with each backend's.
    pub(super) fn datagram_ports(&self) -> impl Iterator<Item = (u16, u16)> {
        let is_udp = self.protocol == Protocol::Udp && self.dynamic.is_none();
        let backends = [&self.backends.ipv4, &self.backends.ipv6].into_iter().flatten();
        backends
            .filter(move |backend| is_udp && backend.port() != 0)
            .map(|backend| (self.bind.port(), backend.port()))
    }

    /// What `--sender` stands for here.
    pub(super) fn note_of_sender(&self) -> Option<String> {
        self.senders.note((self.protocol == Protocol::Udp).then_some(self.udp.dialect))
    }

    /// Whether senders of the family can connect here.
    fn is_reached_by(&self, is_ipv4: bool) -> bool {
        match self.bind.ip() {
            IpAddr::V4(_) => is_ipv4,
            IpAddr::V6(ip) => ip.is_unspecified() || ip.to_ipv4_mapped().is_some() == is_ipv4,
        }
    }

    /// Clients that a header of a sender of the other family may name, for `truepeer check`.
    pub(super) fn note_of_families(&self) -> Option<String> {
        let reads = self.senders.header != HeaderRule::Forbid || !self.senders.rules.is_empty();
        let families = [
            (&self.backends.ipv4, true, "IPv4", OptionName("ipv4")),
            (&self.backends.ipv6, false, "IPv6", OptionName("ipv6")),
        ];
        let missing = families
            .into_iter()
            .find(|(backend, is_ipv4, ..)| backend.is_none() && !self.is_reached_by(*is_ipv4));
        missing.filter(|_| reads).map(|(.., family, option)| {
            format!("{family} clients that a header names are refused: no backend for them; {option} HOST:PORT adds one")
        })
    }

    pub(super) fn warnings(&self, read: &Read) -> Vec<String> {
        let mut warnings = senders::warnings(&read.allow, &self.senders, &self.claims);
        for (backend, family, option) in [
            (&self.backends.ipv4, "IPv4", OptionName("ipv4")),
            (&self.backends.ipv6, "IPv6", OptionName("ipv6")),
        ] {
            if backend.is_none() && self.is_reached_by(family == "IPv4") {
                warnings.push(format!(
                    "{family} clients are refused: no backend for them; add {option} HOST:PORT"
                ));
            }
        }
        let is_ipv4 = |backend: &HostPort| resolve::address(backend).is_some_and(|ip| ip.is_ipv4());
        let may_map = self.pseudo_ipv4 || self.source() == Source::Any || self.http.is_some();
        if let Some(backend) = self.backends.ipv6.as_ref().filter(|backend| is_ipv4(backend) && !may_map) {
            warnings.push(format!(
                "IPv6 clients are refused: -6 {backend} is an IPv4 address; give them an IPv6 backend, or add --pseudo-ipv4"
            ));
        }
        warnings.extend(self.missing_families(read));
        warnings
            .extend(self.datagram_ports().filter_map(|(to, backend)| datagrams::warn_of_raknet(to, backend)));
        let is_tcp = self.protocol == Protocol::Tcp;
        warnings.extend(speaks_first::warning(self.senders.sender, self.backend_ports().filter(|_| is_tcp)));
        warnings.extend(self.tls.as_ref().and_then(TlsConfig::warning_of_own));
        if self.all_origin_tls().any(|origin| origin.insecure) {
            warnings.push(
                "--origin-insecure: the backends' certificates are not verified: whoever stands in between can read and change everything"
                    .to_owned(),
            );
        }
        warnings
    }
}

/// The addresses of an origin, by the client's family.
fn resolve_origin(origin: &OriginConfig) -> Result<Backends, Problem> {
    let place = OptionName("origin");
    let of = |family| resolve::backend(&origin.backend, place, family);
    Ok(Backends::both(of(Family::Ipv4)?, of(Family::Ipv6)?))
}

impl HeaderLimits {
    pub(super) fn of(spec: &SendersSpec, wait: Option<Duration>) -> Self {
        let usual = Self::default();
        Self {
            timeout: spec.header_timeout.unwrap_or(usual.timeout),
            wait: wait.unwrap_or(usual.wait),
            max_bytes: spec.header_max.unwrap_or(usual.max_bytes),
        }
    }
}

impl UdpConfig {
    /// The form for the relay.
    pub fn settings(&self, send_proxy: Option<SendProxy>) -> UdpSettings {
        let sending =
            send_proxy.map(|header| if header == SendProxy::Spp { Dialect::Spp } else { self.dialect });
        let usual = match sending {
            Some(dialect) => dialect.default_silence_sending(),
            None => self.dialect.default_silence(),
        };
        UdpSettings { dialect: self.dialect, silence: self.close_after.unwrap_or(usual), sending }
    }
}
