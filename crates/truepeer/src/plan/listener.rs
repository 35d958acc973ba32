//! One listener: where it listens, whom it admits, where their sessions go.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_policy::{
    Backends, Claims, Delivery, Destinations, Dialect, Dynamic, HeaderRule, HeaderTimes, HostAddresses,
    Nat64Prefix, OnConflict, Policy, PrefixSet, Senders, Source,
};
use truepeer_proto::{Transport, Version};
use truepeer_session::settings::UdpSettings;

use super::http::{ClientAddressConfig, HttpConfig};
use super::resolve::{Family, HostPort};
use super::tls::{OriginTlsConfig, TlsConfig};
use super::{ConfigError, text};

/// What travels through a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    #[default]
    Tcp,
    Udp,
}

/// One listener. A session's rules are in [`ListenerConfig::policy`]; the rest is for whoever opens the sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ListenerConfig {
    pub(crate) bind: SocketAddr,
    pub(crate) protocol: Protocol,
    /// IP_TRANSPARENT on the listening socket (TPROXY).
    pub(crate) transparent: bool,
    /// SO_REUSEPORT sockets on `bind`.
    pub(crate) sockets: NonZeroU16,
    /// SO_MARK of upstream sockets; 0: none.
    pub(crate) mark: u32,
    pub(crate) backends: BackendsConfig,
    /// Set: the backend is the header's destination.
    pub(crate) dynamic: Option<DynamicConfig>,
    pub(crate) senders: SendersConfig,
    pub(crate) header: HeaderLimits,
    pub(crate) claims: ClaimsConfig,
    #[serde(with = "text::one")]
    pub(crate) on_conflict: OnConflict,
    #[serde(with = "text::maybe")]
    pub(crate) nat64_prefix: Option<Nat64Prefix>,
    pub(crate) pseudo_ipv4: bool,
    pub(crate) send_proxy: Option<SendProxy>,
    pub(crate) timeouts: Timeouts,
    /// Connections of one client, where TLS is spoken; 0: any number, `None`: a part of all that there may be.
    pub(crate) max_per_client: Option<usize>,
    pub(crate) udp: UdpConfig,
    /// Set: clients speak TLS.
    pub(crate) tls: Option<TlsConfig>,
    /// Set: backends are spoken TLS with.
    pub(crate) origin_tls: Option<OriginTlsConfig>,
    /// Set: clients speak HTTP, and their requests are passed on one by one.
    pub(crate) http: Option<HttpConfig>,
}

/// The backends, by the client's family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BackendsConfig {
    #[serde(with = "text::one")]
    pub(crate) ipv4: HostPort,
    #[serde(with = "text::one")]
    pub(crate) ipv6: HostPort,
}

/// Where a header may lead.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DynamicConfig {
    #[serde(with = "text::destinations")]
    pub(crate) allow: Destinations,
}

/// The header that is written in front of what goes to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SendProxy {
    V1,
    V2,
    /// Simple Proxy Protocol, in front of datagrams.
    Spp,
}

/// What only a UDP listener needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UdpConfig {
    /// Where the header is, in what comes and in what `send_proxy` writes.
    #[serde(with = "text::one")]
    pub(crate) dialect: Dialect,
    /// A flow is forgotten after such a silence; `None`: as the dialect's usual senders demand.
    #[serde(with = "text::maybe_duration")]
    pub(crate) close_after: Option<Duration>,
}

/// Who may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SendersConfig {
    #[serde(with = "text::prefixes")]
    pub(crate) allow: PrefixSet,
    /// Further senders, one prefix a line; read again on reload.
    pub(crate) allow_files: Vec<PathBuf>,
    #[serde(with = "text::one")]
    pub(crate) header: HeaderRule,
    /// Rules of their own for some senders.
    #[serde(with = "text::list")]
    pub(crate) rules: Vec<SenderRule>,
}

/// `PREFIX=RULE`: whether these senders' connections begin with a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SenderRule {
    pub(crate) senders: PrefixSet,
    pub(crate) rule: HeaderRule,
}

/// How long to wait for a header, and for how much of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HeaderLimits {
    #[serde(with = "text::duration")]
    pub(crate) timeout: Duration,
    /// How long a sender that need not send one may be silent.
    #[serde(with = "text::duration")]
    pub(crate) wait: Duration,
    pub(crate) max_bytes: usize,
}

/// Who may be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClaimsConfig {
    #[serde(with = "text::prefixes")]
    pub(crate) allow: PrefixSet,
    /// Whether this host's own addresses may be claimed, as the programs behind the drop-in names allow it.
    pub(crate) allow_host: bool,
    /// Clients to refuse, one prefix a line; read again on reload.
    pub(crate) deny_files: Vec<PathBuf>,
}

/// How long a session may stay in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Timeouts {
    /// Both directions silent; `None`: for ever.
    #[serde(with = "text::maybe_duration")]
    pub(crate) idle: Option<Duration>,
    #[serde(with = "text::duration")]
    pub(crate) connect: Duration,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8443)),
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
            timeouts: Timeouts::default(),
            max_per_client: None,
            udp: UdpConfig::default(),
            tls: None,
            origin_tls: None,
            http: None,
        }
    }
}

impl Default for BackendsConfig {
    fn default() -> Self {
        Self { ipv4: HostPort::new("127.0.0.1", 443), ipv6: HostPort::new("::1", 443) }
    }
}

impl Default for SendersConfig {
    fn default() -> Self {
        Self {
            allow: PrefixSet::loopback(),
            allow_files: Vec::new(),
            header: HeaderRule::Require,
            rules: Vec::new(),
        }
    }
}

impl Default for HeaderLimits {
    fn default() -> Self {
        let HeaderTimes { timeout, wait } = HeaderTimes::default();
        Self { timeout, wait, max_bytes: 16 * 1024 }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { idle: None, connect: Duration::from_secs(5) }
    }
}

impl ListenerConfig {
    /// The rules of this listener's sessions. Reads the files and resolves the names as they are now, so a reload
    /// calls it again. `own_listeners`: what this program has bound, all listeners together.
    pub(crate) fn policy(&self, own_listeners: &[SocketAddr]) -> Result<Policy, ConfigError> {
        Ok(Policy {
            transport: match self.protocol {
                Protocol::Tcp => Transport::Stream,
                Protocol::Udp => Transport::Dgram,
            },
            senders: self.senders.load()?,
            claims: self.claims.load()?,
            delivery: self.delivery(own_listeners)?,
        })
    }

    /// Whose address backends see.
    pub(crate) fn source(&self) -> Source {
        let is_client = match &self.http {
            Some(http) => http.client_address == ClientAddressConfig::Transparent,
            None => self.send_proxy.is_none(),
        };
        if is_client { Source::Client } else { Source::Any }
    }

    fn delivery(&self, own_listeners: &[SocketAddr]) -> Result<Delivery, ConfigError> {
        Ok(Delivery {
            backends: self.backends.resolve()?,
            dynamic: self.dynamic.as_ref().map(|dynamic| Dynamic {
                allow: dynamic.allow.clone(),
                own_listeners: own_listeners.to_vec(),
            }),
            source: self.source(),
            send_proxy: self.send_proxy.map(SendProxy::version),
            nat64_prefix: self.nat64_prefix,
            pseudo_ipv4: self.pseudo_ipv4,
            on_conflict: self.on_conflict,
        })
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.senders.allow.has_everybody() && self.senders.header != HeaderRule::Forbid {
            warnings.push(
                "every host may connect and claim to be any client; list your load balancers with --allow PREFIX or --allowed-subnets FILE"
                    .to_owned(),
            );
        }
        if self.senders.allow.is_empty() && self.senders.allow_files.is_empty() {
            warnings.push("nobody may connect: the allow-list is empty; add --allow PREFIX".to_owned());
        }
        if self.origin_tls.as_ref().is_some_and(|origin| origin.insecure) {
            warnings.push(
                "--origin-insecure: the backends' certificates are not verified: whoever stands in between can read and change everything"
                    .to_owned(),
            );
        }
        if !self.claims.allow.is_empty() {
            let host = if self.claims.allow_host { ", or has an address of this host" } else { "" };
            warnings.push(format!(
                "a header may claim that the client is in {}{host}: a backend that trusts such addresses trusts every sender",
                self.claims.allow
            ));
        }
        warnings
    }
}

impl SendProxy {
    /// What a stream's header is; datagrams' is the dialect's.
    fn version(self) -> Version {
        if self == Self::V1 { Version::V1 } else { Version::V2 }
    }
}

impl UdpConfig {
    /// As the relay takes it.
    pub(crate) fn settings(&self, send_proxy: Option<SendProxy>) -> UdpSettings {
        let sending =
            send_proxy.map(|header| if header == SendProxy::Spp { Dialect::Spp } else { self.dialect });
        let usual = match sending {
            Some(dialect) => dialect.default_silence_sending(),
            None => self.dialect.default_silence(),
        };
        UdpSettings { dialect: self.dialect, silence: self.close_after.unwrap_or(usual), sending }
    }
}

impl BackendsConfig {
    fn resolve(&self) -> Result<Backends, ConfigError> {
        Ok(Backends {
            ipv4: self.ipv4.backend("-4", Family::Ipv4)?,
            ipv6: self.ipv6.backend("-6", Family::Ipv6)?,
        })
    }
}

impl SendersConfig {
    fn load(&self) -> Result<Senders, ConfigError> {
        let mut allow = self.allow.clone();
        for path in &self.allow_files {
            allow.extend(&read_prefixes("--allowed-subnets", path)?);
        }
        let mut senders = Senders::new(allow, self.header);
        for exception in &self.rules {
            senders.set_rule(&exception.senders, exception.rule);
        }
        senders.check()?;
        Ok(senders)
    }
}

impl ClaimsConfig {
    fn load(&self) -> Result<Claims, ConfigError> {
        let mut deny = PrefixSet::new();
        for path in &self.deny_files {
            deny.extend(&read_prefixes("--deny-clients", path)?);
        }
        let host = if self.allow_host {
            HostAddresses::default()
        } else {
            HostAddresses::new(truepeer_sys::host::is_own_address)
        };
        Ok(Claims { allow: self.allow.clone(), deny, host })
    }
}

pub(crate) fn read_prefixes(option: &'static str, path: &Path) -> Result<PrefixSet, ConfigError> {
    let content = std::fs::read_to_string(path);
    let content = content.map_err(|source| ConfigError::File { option, path: path.to_owned(), source })?;
    PrefixSet::parse_file(&content).map_err(|source| ConfigError::PrefixFile {
        option,
        path: path.to_owned(),
        source,
    })
}

impl FromStr for SenderRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (senders, rule) = text.split_once('=').ok_or_else(|| format!("{text:?} is not PREFIX=RULE"))?;
        Ok(Self {
            senders: senders.parse().map_err(|error| format!("{error}"))?,
            rule: rule.parse().map_err(|error| format!("{error}"))?,
        })
    }
}

impl fmt::Display for SenderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, prefix) in self.senders.iter().enumerate() {
            write!(f, "{}{prefix}={}", if index > 0 { " " } else { "" }, self.rule)?;
        }
        Ok(())
    }
}
