//! Addresses as users write them, host names included.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// Whether an address is of this family.
    pub(crate) fn has(self, addr: SocketAddr) -> bool {
        addr.is_ipv4() == (self == Self::Ipv4)
    }
}

/// `HOST:PORT` of a backend; the host may be a name, which is resolved whenever a policy is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// The host without brackets.
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port }
    }

    /// The host without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match split(text) {
            Some((host, port)) if !host.is_empty() => Ok(Self::new(host, port)),
            _ => Err(format!(
                "expected HOST:PORT, such as 127.0.0.1:443, [::1]:443 or backend.example:443{}",
                about(text)
            )),
        }
    }
}

/// What is wrong with a number in the place of a port.
pub(super) fn about(text: &str) -> String {
    let port = text.rsplit(':').next().unwrap_or_default();
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && port.parse::<u16>().is_err() { format!("; {port} is above 65535") } else { String::new() }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddr {
    /// `[HOST]:PORT`; no host (or `*`) is every address of this machine.
    Address(HostPort),
    /// `fd:NAME`: a socket that the service manager passes.
    Passed(String),
}

impl ListenAddr {
    /// The host without brackets.
    pub fn new(host: &str, port: u16) -> Self {
        Self::Address(HostPort::new(host, port))
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (split(text), text.strip_prefix("fd:")) {
            (Some((host, port)), _) => Ok(Self::new(host, port)),
            (None, Some(name)) if is_name(name) => Ok(Self::Passed(name.to_owned())),
            _ => Err(format!(
                "expected [ADDR]:PORT, such as 0.0.0.0:8443, [::]:8443 or :8443 (every address), or fd:NAME{}",
                about(text)
            )),
        }
    }
}

/// `http(s)://HOST[:PORT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginUrl {
    pub(crate) is_https: bool,
    pub(crate) host: HostPort,
}

impl OriginUrl {
    /// `HOST:PORT` of a URL with http.
    pub fn plain(&self) -> Option<String> {
        (!self.is_https).then(|| self.host.to_string())
    }
}

impl FromStr for OriginUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected http://HOST[:PORT] or https://HOST[:PORT], such as https://127.0.0.1:8443 or http://[::1]:80"
                .to_owned()
        };
        let (is_https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let usual_port = if is_https { 443 } else { 80 };
        let host = rest.parse().or_else(|_| format!("{rest}:{usual_port}").parse());
        Ok(Self { is_https, host: host.map_err(|_: String| wrong())? })
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Passed(name) => write!(f, "fd:{name}"),
        }
    }
}

/// As systemd.socket(5) has it for FileDescriptorName=.
fn is_name(name: &str) -> bool {
    (1..=255).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b':')
}

/// Host (brackets removed) and port. An IPv6 address needs its brackets: `::1:80` is one, too.
fn split(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').filter(|inner| inner.contains(':'))?,
        None if host.contains([':', ']', ' ', '/', ',']) => return None,
        None => host,
    };
    // `8080:80`, as Docker has it, or 300.1.1.1: no host's name.
    let is_number = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number && [0, 3].contains(&host.matches('.').count()) && host.parse::<Ipv4Addr>().is_err() {
        return None;
    }
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    Some((host, if digits { port.parse().ok()? } else { return None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_host_and_port() {
        for text in ["127.0.0.1:443", "[::1]:443", "localhost:1", "[fe80::1%lo]:80", "a.b-c_d:65535"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        for text in [
            "",
            ":443",
            "127.0.0.1",
            "::1:443",
            "[::1]",
            "[127.0.0.1]:1",
            "x:",
            "x:65536",
            "x:+1",
            "http://x:1",
        ] {
            let error = text.parse::<HostPort>().unwrap_err();
            assert!(error.contains("expected HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn listeners_are_an_address_and_a_port() {
        for text in ["8443", "", "[::]", "::8443:", "0.0.0.0:x"] {
            assert!(text.parse::<ListenAddr>().unwrap_err().contains("expected [ADDR]:PORT"), "{text}");
        }
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_perhaps_a_port() {
        for (text, is_https, host) in [
            ("http://127.0.0.1:8080", false, "127.0.0.1:8080"),
            ("https://app.internal", true, "app.internal:443"),
            ("http://app/", false, "app:80"),
            ("https://[::1]", true, "[::1]:443"),
            ("https://[::1]:1", true, "[::1]:1"),
        ] {
            let origin: OriginUrl = text.parse().unwrap();
            assert_eq!((origin.is_https, origin.host.to_string()), (is_https, host.to_owned()), "{text}");
        }
        for text in ["app:80", "ftp://app", "https://", "https://app/path", "https://a b", "https://::1"] {
            assert!(text.parse::<OriginUrl>().unwrap_err().contains("https://HOST"), "{text}");
        }
    }
}

/// Where to ask about the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAddr {
    Unix(PathBuf),
    /// Every user may connect, and ask who one peer is.
    Whois(PathBuf),
    Tcp(SocketAddr),
}

impl AdminAddr {
    /// The path of the socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) | Self::Whois(path) => Some(path),
            Self::Tcp(_) => None,
        }
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Whois(path) => write!(f, "whois:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

impl FromStr for AdminAddr {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("whois:").filter(|path| path.starts_with(['/', '.'])) {
            return Ok(Self::Whois(path.into()));
        }
        if (text.contains('/') || text.starts_with('.')) && !text.contains("://") {
            return Ok(Self::Unix(text.into()));
        }
        let wrong =
            "expected the path of a socket, or ADDR:PORT, such as /run/truepeer/admin.sock or 127.0.0.1:9144";
        text.parse().map(Self::Tcp).map_err(|_| wrong)
    }
}
