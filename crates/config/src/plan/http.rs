//! The HTTP part of a listener's plan.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_http::HttpLimits;
use truepeer_https::gateway::{ClientAddress, HttpOptions};
use truepeer_origin::{HealthTable, HttpSettings, HttpTimeouts, OriginHealth, OriginProtocol};
use truepeer_policy::PrefixSet;

use super::origins::{CheckedOrigin, HealthConfig, OriginConfig};
use crate::spec::{ClientAddressConfig, HttpsSpec, OriginProtocolConfig, UnknownHost, defaults, text};

/// How requests are passed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    pub(crate) client_address: ClientAddressConfig,
    /// Senders whose own forwarding fields are passed on.
    #[serde(with = "text::prefixes")]
    pub trusted: PrefixSet,
    /// None: all.
    pub methods: Vec<String>,
    /// In bytes; `None`: unlimited.
    pub(crate) max_body: Option<u64>,
    /// In bytes.
    pub(crate) max_head: usize,
    pub(crate) max_fields: usize,
    /// In bytes a second; 0: no limit.
    pub(crate) min_rate: u64,
    pub(crate) access_log: bool,
    /// The site's names; none: those of its certificates.
    pub(crate) hosts: Vec<String>,
    /// `None`: the first site serves them.
    pub(crate) unknown_host: Option<UnknownHost>,
    /// How the default origin is checked.
    pub(crate) health: Option<HealthConfig>,
    /// The origins for some hosts and paths.
    pub(crate) origins: Vec<OriginConfig>,
    /// Set for a listener without TLS that redirects requests to https on this port.
    pub(crate) redirect: Option<u16>,
    pub(crate) origin_protocol: OriginProtocolConfig,
    /// Idle connections to the origin, for each worker.
    pub(crate) origin_keepalive: usize,
    #[serde(with = "text::duration")]
    pub(crate) origin_idle: Duration,
    /// How long a request waits for an origin that refuses connections.
    #[serde(with = "text::duration")]
    pub(crate) origin_retry_timeout: Duration,
    #[serde(with = "text::duration")]
    pub(crate) head_timeout: Duration,
    #[serde(with = "text::duration")]
    pub(crate) body_timeout: Duration,
    #[serde(with = "text::duration")]
    pub(crate) send_timeout: Duration,
    #[serde(with = "text::duration")]
    pub(crate) keepalive_timeout: Duration,
    #[serde(with = "text::duration")]
    pub(crate) response_timeout: Duration,
    /// After 101.
    #[serde(with = "text::duration")]
    pub(crate) tunnel_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        let timeouts = HttpTimeouts::default();
        Self {
            client_address: ClientAddressConfig::default(),
            trusted: PrefixSet::new(),
            methods: Vec::new(),
            max_body: None,
            max_head: HttpLimits::default().head_bytes,
            max_fields: HttpLimits::default().fields,
            min_rate: HttpSettings::default().min_rate,
            access_log: false,
            hosts: Vec::new(),
            unknown_host: None,
            health: None,
            origins: Vec::new(),
            redirect: None,
            origin_protocol: OriginProtocolConfig::default(),
            origin_keepalive: defaults::ORIGIN_KEEPALIVE,
            origin_idle: defaults::ORIGIN_IDLE,
            origin_retry_timeout: defaults::ORIGIN_RETRY_TIMEOUT,
            head_timeout: timeouts.head,
            body_timeout: timeouts.body,
            send_timeout: timeouts.send,
            keepalive_timeout: timeouts.keep_alive,
            response_timeout: timeouts.response,
            tunnel_timeout: timeouts.tunnel,
        }
    }
}

impl HttpConfig {
    pub(super) fn of(spec: &HttpsSpec, client_address: ClientAddressConfig) -> Self {
        let usual = Self::default();
        let mut trusted = PrefixSet::new();
        spec.trusted.iter().for_each(|prefixes| trusted.extend(prefixes));
        Self {
            client_address,
            trusted,
            methods: spec.methods.clone(),
            max_body: spec.max_body,
            max_head: spec.max_head.unwrap_or(usual.max_head),
            max_fields: spec.max_fields.unwrap_or(usual.max_fields),
            min_rate: spec.min_rate.unwrap_or(usual.min_rate),
            access_log: spec.access_log,
            hosts: spec.host.clone(),
            unknown_host: spec.unknown_host,
            health: None,
            origins: Vec::new(),
            redirect: None,
            origin_protocol: spec.origin_protocol.unwrap_or(usual.origin_protocol),
            origin_keepalive: spec.origin_keepalive.unwrap_or(usual.origin_keepalive),
            origin_idle: spec.origin_idle.unwrap_or(usual.origin_idle),
            origin_retry_timeout: spec.origin_retry_timeout.unwrap_or(usual.origin_retry_timeout),
            head_timeout: spec.head_timeout.unwrap_or(usual.head_timeout),
            body_timeout: spec.body_timeout.unwrap_or(usual.body_timeout),
            send_timeout: spec.send_timeout.unwrap_or(usual.send_timeout),
            keepalive_timeout: spec.keepalive_timeout.unwrap_or(usual.keepalive_timeout),
            response_timeout: spec.response_timeout.unwrap_or(usual.response_timeout),
            tunnel_timeout: spec.tunnel_timeout.unwrap_or(usual.tunnel_timeout),
        }
    }

    /// The form for the workers. `default` and `others`: the default origin and each of `origins`, as read.
    pub fn options(
        &self,
        default: &CheckedOrigin,
        others: &[CheckedOrigin],
        mark: u32,
        table: &HealthTable,
    ) -> HttpOptions {
        let limits = HttpLimits {
            head_bytes: self.max_head,
            fields: self.max_fields,
            target_bytes: HttpLimits::default().target_bytes.min(self.max_head),
            ..HttpLimits::default()
        };
        let usual = HttpTimeouts::default();
        let timeouts = HttpTimeouts {
            head: self.head_timeout,
            body: self.body_timeout,
            send: self.send_timeout,
            keep_alive: self.keepalive_timeout,
            last_request: usual.last_request.min(self.keepalive_timeout),
            response: self.response_timeout,
            tunnel: self.tunnel_timeout,
            half_tunnel: usual.half_tunnel.min(self.tunnel_timeout),
            ..usual
        };
        HttpOptions {
            settings: HttpSettings {
                limits,
                timeouts,
                methods: self.methods.clone(),
                max_body: self.max_body,
                min_rate: self.min_rate,
                trusted: self.trusted.clone(),
                access_log: self.access_log,
                redirect: self.redirect,
                ..HttpSettings::default()
            },
            client_address: match self.client_address {
                ClientAddressConfig::Forwarded => ClientAddress::Forwarded,
                ClientAddressConfig::Transparent => ClientAddress::Transparent,
                ClientAddressConfig::Proxy => ClientAddress::Proxy,
            },
            origin_protocol: match self.origin_protocol {
                OriginProtocolConfig::Auto => OriginProtocol::Auto,
                OriginProtocolConfig::H2 => OriginProtocol::Http2,
                OriginProtocolConfig::Http1 => OriginProtocol::Http1,
            },
            origin_keepalive: self.origin_keepalive,
            origin_idle: self.origin_idle,
            origin_retry_timeout: self.origin_retry_timeout,
            health: self.health_of(self.health.as_ref(), default, mark, table),
            others: self
                .origins
                .iter()
                .zip(others)
                .map(|(origin, read)| {
                    let health = self.health_of(origin.health.as_ref(), read, mark, table);
                    origin.other(read, health)
                })
                .collect(),
        }
    }

    /// The health of an origin's addresses. A listener that only redirects checks none.
    fn health_of(
        &self,
        rule: Option<&HealthConfig>,
        read: &CheckedOrigin,
        mark: u32,
        table: &HealthTable,
    ) -> OriginHealth {
        let Some(rule) = rule.filter(|_| self.redirect.is_none()) else { return OriginHealth::default() };
        let mut hasher = DefaultHasher::new();
        let sends_header = self.client_address == ClientAddressConfig::Proxy;
        (read.tls_digest, self.origin_protocol, sends_header, mark).hash(&mut hasher);
        rule.health(read.backends, hasher.finish(), table)
    }
}
