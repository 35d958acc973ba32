//! Several origins, by host and path, and how they are checked.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_https::gateway::OtherOrigin;
use truepeer_https::tunnel::OriginTls;
use truepeer_origin::{Check, HealthRule, HealthTable, OriginHealth, Serves};
use truepeer_policy::Backends;

use super::problem::{OptionName, Problem, Problems};
use super::read::origin_digest;
use super::tls::{OriginTlsConfig, certificate};
use crate::spec::{HealthOption, HostPort, HttpsSpec, OriginMatch, OriginRule, OriginUrl, text};

/// An origin's addresses and TLS files, as they were read.
#[derive(Debug, Clone)]
pub struct CheckedOrigin {
    pub(crate) backends: Backends,
    pub tls: Option<OriginTls>,
    /// A digest of its TLS options and their files.
    pub(crate) tls_digest: u64,
}

impl CheckedOrigin {
    /// Reads the TLS files. The caller passes the addresses later, after it has read everything else: so all
    /// problems are reported at once.
    pub(super) fn read(
        tls: Option<&OriginTlsConfig>,
        with_http: bool,
    ) -> Result<impl FnOnce(Backends) -> Self + use<>, Problem> {
        // Digest first: a file that changes meanwhile then differs at the next reload.
        let tls_digest = origin_digest(tls);
        let tls =
            tls.map(OriginTlsConfig::read).transpose().map_err(|error| Problem::tls(error, with_http))?;
        Ok(move |backends| Self { backends, tls, tls_digest })
    }
}

/// An origin for some hosts and paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OriginConfig {
    /// In lower case; `None`: any host.
    pub(crate) host: Option<String>,
    /// `None`: any path.
    pub(crate) path: Option<String>,
    #[serde(with = "text::one")]
    pub(crate) backend: HostPort,
    pub(crate) tls: Option<OriginTlsConfig>,
    pub(crate) health: Option<HealthConfig>,
}

/// How an origin is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthConfig {
    /// `None`: by connecting.
    pub(crate) path: Option<String>,
    /// The host in the check's request.
    pub(crate) host: String,
    #[serde(with = "text::duration")]
    pub(crate) every: Duration,
}

impl HealthConfig {
    /// The health of these addresses. `connection`: see [`Check`].
    pub(super) fn health(&self, backends: Backends, connection: u64, table: &HealthTable) -> OriginHealth {
        let Self { path, host, every } = self.clone();
        let rule = HealthRule { path, host, every };
        let of = |address| table.of(Check { address, rule: rule.clone(), connection });
        OriginHealth { ipv4: backends.ipv4.map(of), ipv6: backends.ipv6.map(of) }
    }
}

impl OriginConfig {
    /// The requests that it gets, as they are typed.
    pub(super) fn serves(&self) -> String {
        OriginMatch { host: self.host.clone(), path: self.path.clone() }.to_string()
    }

    /// The form for the workers.
    pub(super) fn other(&self, read: &CheckedOrigin, health: OriginHealth) -> OtherOrigin {
        let serves = Serves { host: self.host.clone(), prefix: self.path.clone() };
        OtherOrigin { serves, backends: read.backends, tls: read.tls.clone(), health }
    }
}

/// The origins of a command line.
pub(super) struct Written {
    /// For the requests that no other origin gets.
    pub(super) default: OriginUrl,
    pub(super) health: Option<HealthConfig>,
    pub(super) others: Vec<OriginConfig>,
}

const PLACE: OptionName = OptionName("origin");
const HEALTH: OptionName = OptionName("origin-health");

/// The origins as they were written. `None`: something is wrong, and noted in `problems`.
pub(super) fn origins(spec: &HttpsSpec, problems: &mut Problems) -> Option<Written> {
    for (at, one) in spec.origin.iter().enumerate() {
        problems.note(refuse_second(&spec.origin[..at], one));
    }
    for (at, rule) in spec.origin_health.iter().enumerate() {
        problems.note(refuse_unknown(spec, rule));
        problems.note(refuse_second_rule(&spec.origin_health[..at], rule));
    }
    let default = spec.origin.iter().find(|origin| origin.serves.is_none());
    let Some(default) = default else {
        let first = spec.origin.first();
        let value = first.map(|origin| format!(" {}{}", prefix(origin.serves.as_ref()), origin.typed));
        let expected = "it gets some requests only; expected --origin URL as well, for all others".to_owned();
        problems.add(Problem::Value { place: PLACE, value: value.unwrap_or_default(), expected });
        return None;
    };
    let others = spec.origin.iter().filter_map(|origin| {
        let serves = origin.serves.as_ref()?;
        Some(OriginConfig {
            host: serves.host.clone(),
            path: serves.path.clone(),
            backend: origin.url.host.clone(),
            tls: tls(spec, &origin.url),
            health: health(spec, origin),
        })
    });
    Some(Written { default: default.url.clone(), health: health(spec, default), others: others.collect() })
}

/// A match as it stands before a value.
fn prefix(serves: Option<&OriginMatch>) -> String {
    serves.map(|serves| format!("{serves}=")).unwrap_or_default()
}

fn refuse_second(before: &[OriginRule], one: &OriginRule) -> Result<(), Problem> {
    let Some(first) = before.iter().find(|other| other.serves == one.serves) else { return Ok(()) };
    let value = format!(" {}{}", prefix(one.serves.as_ref()), one.typed);
    let expected = match &one.serves {
        None => format!("{} gets all other requests already; expected MATCH=URL", first.typed),
        Some(serves) => {
            format!("{} gets the requests for {serves} already; expected another host or path", first.typed)
        }
    };
    Err(Problem::Value { place: PLACE, value, expected })
}

fn refuse_second_rule(before: &[HealthOption], rule: &HealthOption) -> Result<(), Problem> {
    if before.iter().all(|other| other.of != rule.of) {
        return Ok(());
    }
    let (value, expected) = match &rule.of {
        Some(of) => (format!(" {of}=…"), "given twice; expected one rule for each origin"),
        None => (String::new(), "given twice without a match; expected one RULE for all, MATCH=RULE for one"),
    };
    Err(Problem::Value { place: HEALTH, value, expected: expected.to_owned() })
}

/// The origin's own rule, or the one without a match.
fn health(spec: &HttpsSpec, origin: &OriginRule) -> Option<HealthConfig> {
    let own = spec.origin_health.iter().find(|rule| rule.of.is_some() && rule.of == origin.serves);
    let rule = own.or_else(|| spec.origin_health.iter().find(|rule| rule.of.is_none()))?;
    let host = rule.host.clone().unwrap_or_else(|| asked_host(spec, origin));
    Some(HealthConfig { path: rule.path.clone(), host, every: rule.every })
}

/// The host in a check's request: that of the origin's match, or else `--origin-name` for https, or else the
/// URL's.
fn asked_host(spec: &HttpsSpec, origin: &OriginRule) -> String {
    let host = origin.serves.as_ref().and_then(|serves| serves.host.as_ref());
    if let Some(host) = host.filter(|host| !host.starts_with('*')) {
        return host.clone();
    }
    let OriginUrl { is_https, host: url } = &origin.url;
    let name = spec.origin_tls.origin_name.as_deref().filter(|_| *is_https).unwrap_or(url.host());
    let usual_port = if *is_https { 443 } else { 80 };
    match (name.contains(':'), url.port() == usual_port) {
        (false, true) => name.to_owned(),
        (true, true) => format!("[{name}]"),
        (_, false) => HostPort::new(name, url.port()).to_string(),
    }
}

fn refuse_unknown(spec: &HttpsSpec, rule: &HealthOption) -> Result<(), Problem> {
    let Some(of) = &rule.of else { return Ok(()) };
    if spec.origin.iter().any(|origin| origin.serves.as_ref() == Some(of)) {
        return Ok(());
    }
    let expected = format!("expected --origin {of}=URL with it");
    Err(Problem::Value { place: HEALTH, value: format!(" {of}=…"), expected })
}

/// TLS with an `https://` origin.
pub(super) fn tls(spec: &HttpsSpec, url: &OriginUrl) -> Option<OriginTlsConfig> {
    let origin = &spec.origin_tls;
    url.is_https.then(|| OriginTlsConfig {
        name: origin.origin_name.clone().unwrap_or_else(|| url.host.host().to_owned()),
        ca: origin.origin_ca.clone(),
        insecure: origin.origin_insecure,
        alpn: vec!["http/1.1".to_owned()],
        cert: certificate(origin.origin_cert.as_ref(), origin.origin_key.as_ref()),
    })
}

/// Refuses options about TLS with origins if no origin uses it.
pub(super) fn refuse_idle_tls(spec: &HttpsSpec) -> Result<(), Problem> {
    let origin = &spec.origin_tls;
    if spec.origin.iter().any(|origin| origin.url.is_https) {
        return origin.refuse_contradictions();
    }
    let given = origin.first_given();
    given.map_or(Ok(()), |option| Err(Problem::at(option, "expected --origin https://… with it")))
}
