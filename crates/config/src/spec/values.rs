//! Parsers of values. Each error says what was expected.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_http::HttpLimits;
use truepeer_policy::{HeaderRule, PrefixSet};

use super::HostPort;
use super::text::parse_duration;
use truepeer_routes::item::IpTransport;
use truepeer_routes::options::RoutesMode;

/// The transport of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
}

impl From<Protocol> for IpTransport {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
        }
    }
}

impl Protocol {
    /// The name, as typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// What a listening address carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carried {
    #[default]
    Tcp,
    Udp,
    Both,
}

impl Carried {
    /// A listener for each.
    pub(crate) fn protocols(self) -> &'static [Protocol] {
        match self {
            Self::Tcp => &[Protocol::Tcp],
            Self::Udp => &[Protocol::Udp],
            Self::Both => &[Protocol::Tcp, Protocol::Udp],
        }
    }
}

/// The header to write for the backend instead of using the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendProxy {
    V1,
    V2,
    /// Simple Proxy Protocol, for datagrams.
    Spp,
}

/// The log level; each includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verbosity {
    /// Warnings and errors: among them refusals, at most once a minute for each reason and sender.
    Quiet,
    /// Start and stop (`-v 0`).
    #[default]
    Lifecycle,
    /// One line for each session, at its end (`-v 1`).
    Sessions,
    /// Every change of a session's state (`-v 2`).
    States,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// Whether a client must present a certificate when it is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCert {
    #[default]
    Required,
    Optional,
}

/// How an origin learns the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAddressConfig {
    #[default]
    Forwarded,
    Transparent,
    Proxy,
}

/// The version of HTTP to speak with an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginProtocolConfig {
    Auto,
    H2,
    #[default]
    Http1,
}

/// What clients without TLS get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnHttp {
    /// A redirect to https on this port; `None`: on that of the first listener.
    Redirect(Option<u16>),
    Serve,
}

impl Default for OnHttp {
    fn default() -> Self {
        Self::Redirect(None)
    }
}

/// What happens to clients that ask for no site's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownHost {
    First,
    Refuse,
}

/// Prefixes, several with commas, or a file that lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrefixesOrFile {
    Prefixes(Box<PrefixSet>),
    File(PathBuf),
}

impl FromStr for PrefixesOrFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(['/', '.']) {
            return Ok(Self::File(text.into()));
        }
        let mut all = PrefixSet::new();
        for part in text.split(',').map(str::trim) {
            if ["0.0.0.0", "::"].contains(&part) {
                return Err(format!("{part} is nobody's address; expected any for every address"));
            }
            let prefixes: PrefixSet = part.parse().map_err(|_| {
                let of = if part == text { String::new() } else { format!("{part:?}: ") };
                let hint = match part {
                    file if is_list(file) => format!("; did you mean ./{file}?"),
                    name if is_host_name(name) => {
                        format!("; names are not looked up: type the addresses of `getent ahosts {name}`")
                    }
                    _ => String::new(),
                };
                format!(
                    "{of}expected loopback, private, any, an address, a prefix such as 10.0.0.0/8, or the path of a file (beginning \
                     with / or .){hint}"
                )
            })?;
            all.extend(&prefixes);
        }
        Ok(Self::Prefixes(Box::new(all)))
    }
}

/// A file that is there, or a name as lists have.
fn is_list(word: &str) -> bool {
    let endings = [".txt", ".list", ".lst", ".conf", ".csv"];
    Path::new(word).is_file() || endings.iter().any(|ending| word.ends_with(ending))
}

/// `lb.example.com`.
fn is_host_name(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let last = word.rsplit_once('.').map(|(_, last)| last);
    last.is_some_and(|last| last.starts_with(|c: char| c.is_ascii_alphabetic()))
        && word.split('.').all(|part| !part.is_empty() && part.chars().all(is_part))
}

/// `--deny-clients`: the same, but any other word is a file name, too, because it once accepted nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deny(pub PrefixesOrFile);

impl FromStr for Deny {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_no_name =
            text.starts_with(|c: char| c.is_ascii_digit() || c == ':') && !Path::new(text).exists();
        match text.parse() {
            Err(_) if !text.is_empty() && !is_no_name => Ok(Self(PrefixesOrFile::File(text.into()))),
            parsed => parsed.map(Self),
        }
    }
}

/// A value of `--header`: a rule for all senders, or for some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderOption {
    All(HeaderRule),
    Some(Box<SenderRule>),
}

impl FromStr for HeaderOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.contains('=') {
            true => text.parse().ok().map(|rule| Self::Some(Box::new(rule))),
            false => text.parse().ok().map(Self::All),
        };
        parsed.ok_or_else(|| {
            "expected require, optional or forbid, or PREFIX=RULE for some senders, such as 10.0.0.0/8=optional".to_owned()
        })
    }
}

/// `-4` and `-6` of `proxy`: HOST:PORT, or HOST, as port 0, which stands for the port that a connection came
/// to.
pub(super) fn backend(text: &str) -> Result<HostPort, String> {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    if ["0.0.0.0", "[::]"].contains(&host) {
        return Err(format!(
            "{host} is for listening; expected the address of one host, such as 127.0.0.1:443"
        ));
    }
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let bare = in_brackets.unwrap_or(text);
    // Without brackets ::1:443 could be either.
    let is_address = match in_brackets {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok(),
    };
    let is_name = text.contains(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if is_address || is_name { Ok(HostPort::new(bare, 0)) } else { text.parse() }
}

/// `PREFIX=RULE`: whether these senders' connections start with a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderRule {
    pub(crate) senders: PrefixSet,
    pub(crate) rule: HeaderRule,
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

/// A duration that may be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaybeDuration(pub(crate) Option<Duration>);

impl FromStr for MaybeDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let duration = parse_duration(text).map_err(|error| format!("{error}, or none"))?;
        Ok(Self(Some(duration).filter(|duration| !duration.is_zero())))
    }
}

/// A duration longer than 0.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("expected more than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// The smallest header that every version fits in (PROXY 2.1), and the longest v2 one (PROXY 2.2).
const HEADER_MAX: std::ops::RangeInclusive<usize> = 107..=16 + 65535;

/// `--header-max`, in bytes.
pub(super) fn header_max(text: &str) -> Result<usize, String> {
    let bytes = size(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| HEADER_MAX.contains(bytes)).ok_or_else(|| {
        format!("expected {} to {} bytes, such as 4096 or 16KiB", HEADER_MAX.start(), HEADER_MAX.end())
    })
}

/// Bytes, with a unit or without.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 5] =
        [("KiB", 1 << 10), ("k", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (digits, unit) = unit.unwrap_or((text, 1));
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "expected bytes, or a number with KiB, MiB or GiB, such as 100MiB".to_owned())
}

/// `--max-head`, in bytes.
pub(super) fn head_size(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(size(text)?).ok().filter(|bytes| (1024..=1 << 20).contains(bytes));
    bytes.ok_or_else(|| "expected 1KiB to 1MiB".to_owned())
}

/// `--max-fields`.
pub(super) fn field_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=HttpLimits::MOST_FIELDS).contains(count));
    count.ok_or_else(|| format!("expected a number from 1 to {}", HttpLimits::MOST_FIELDS))
}

/// `--mark`: decimal or hexadecimal, as in `ip rule`.
pub(super) fn mark(text: &str) -> Result<u32, String> {
    number(text).ok_or_else(|| "expected a number from 0 to 4294967295, decimal or 0x…".to_owned())
}

/// `--table`. The kernel's own tables are refused: a table that leads everything to this machine would cut it
/// off.
pub(super) fn table(text: &str) -> Result<u32, String> {
    number(text).filter(|table| !matches!(table, 0 | 253..=255)).ok_or_else(|| {
        "expected the number of a routing table of its own, from 1, not 253 to 255 (default, main, local)"
            .to_owned()
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

/// `--listeners`, `--workers`.
pub(super) fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a number from 1".to_owned())
}

/// `--origin-keepalive`, `--core`.
pub(super) fn count_or_none<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a number from 0".to_owned())
}

/// `--protocol`.
pub(super) fn protocol(text: &str) -> Result<Protocol, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        _ => Err("expected tcp or udp".to_owned()),
    }
}

/// `proxy --protocol`.
pub(super) fn carried(text: &str) -> Result<Carried, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Carried::Tcp),
        "udp" => Ok(Carried::Udp),
        "both" => Ok(Carried::Both),
        _ => Err("expected tcp, udp or both".to_owned()),
    }
}

/// `-v`.
pub(super) fn verbosity(text: &str) -> Result<Verbosity, String> {
    match text {
        "0" => Ok(Verbosity::Lifecycle),
        "1" => Ok(Verbosity::Sessions),
        "2" | "v" => Ok(Verbosity::States),
        _ => Err(
            "expected 0 (start, stop, warnings), 1 (and a line for each session) or 2 (and changes of state)"
                .to_owned(),
        ),
    }
}

/// `level` of `[log]`.
pub(super) fn log_level(text: &str) -> Result<Verbosity, String> {
    LEVELS.iter().find(|(name, _)| *name == text).map(|(_, level)| *level).ok_or_else(|| {
        "expected warn, info (start and stop, too), sessions (and a line for each session) or debug (and changes of state)"
            .to_owned()
    })
}

/// Log levels by their names in a file.
pub const LEVELS: [(&str, Verbosity); 4] = [
    ("warn", Verbosity::Quiet),
    ("info", Verbosity::Lifecycle),
    ("sessions", Verbosity::Sessions),
    ("debug", Verbosity::States),
];

/// `--log-format`.
pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected text or json".to_owned()),
    }
}

/// `--routes`.
pub(super) fn routes_mode(text: &str) -> Result<RoutesMode, String> {
    match text {
        "auto" => Ok(RoutesMode::Auto),
        "manual" => Ok(RoutesMode::Manual),
        _ => Err("expected auto (set them, remove them at the end) or manual (set up elsewhere)".to_owned()),
    }
}

/// `--send-proxy`.
pub(super) fn send_proxy(text: &str) -> Result<SendProxy, String> {
    match text {
        "v1" | "1" => Ok(SendProxy::V1),
        "v2" | "2" => Ok(SendProxy::V2),
        "spp" => Ok(SendProxy::Spp),
        _ => Err("expected v1, v2 or spp".to_owned()),
    }
}

/// `--client-cert`.
pub(super) fn client_cert(text: &str) -> Result<ClientCert, String> {
    match text {
        "required" => Ok(ClientCert::Required),
        "optional" => Ok(ClientCert::Optional),
        _ => Err("expected required or optional".to_owned()),
    }
}

/// `--client-address`.
pub(super) fn client_address(text: &str) -> Result<ClientAddressConfig, String> {
    match text {
        "forwarded" => Ok(ClientAddressConfig::Forwarded),
        "transparent" => Ok(ClientAddressConfig::Transparent),
        "proxy" => Ok(ClientAddressConfig::Proxy),
        _ => Err("expected forwarded, transparent or proxy".to_owned()),
    }
}

/// `--origin-protocol`.
pub(super) fn origin_protocol(text: &str) -> Result<OriginProtocolConfig, String> {
    match text {
        "auto" => Ok(OriginProtocolConfig::Auto),
        "h2" => Ok(OriginProtocolConfig::H2),
        "http1" => Ok(OriginProtocolConfig::Http1),
        _ => Err("expected auto, h2 or http1".to_owned()),
    }
}

/// `--on-http`.
pub(super) fn on_http(text: &str) -> Result<OnHttp, String> {
    match text {
        "redirect" => Ok(OnHttp::Redirect(None)),
        "serve" => Ok(OnHttp::Serve),
        _ => {
            let port = text.strip_prefix("redirect:").and_then(|port| port.parse::<NonZeroU16>().ok());
            port.map(|port| OnHttp::Redirect(Some(port.get())))
                .ok_or_else(|| "expected redirect, redirect:PORT or serve".to_owned())
        }
    }
}

pub(super) fn unknown_host(text: &str) -> Result<UnknownHost, String> {
    match text {
        "first" => Ok(UnknownHost::First),
        "refuse" => Ok(UnknownHost::Refuse),
        _ => Err("expected first or refuse".to_owned()),
    }
}

/// A method is a token (RFC 9110 section 9.1), and the usual ones are upper case: `get` would match no
/// request.
pub(super) fn method(text: &str) -> Result<String, String> {
    let is_method = |text: &str| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if !text.is_empty() && is_method(text) {
        Ok(text.to_owned())
    } else {
        Err("expected methods in upper case, separated by commas, such as GET,POST".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_methods_are_upper_case() {
        assert_eq!(size("100MiB"), Ok(100 << 20));
        assert_eq!(size("5"), Ok(5));
        assert!(size("x").is_err() && size("99999999999GiB").is_err() && head_size("1").is_err());
        assert!(method("GET").is_ok() && method("get").is_err() && method("").is_err());
    }
}
