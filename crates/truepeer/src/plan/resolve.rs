//! Addresses as users write them, host names included.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;

use truepeer_policy::BackendAddr;

use super::ConfigError;

/// An IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    fn has(self, addr: SocketAddr) -> bool {
        addr.is_ipv4() == (self == Self::Ipv4)
    }
}

/// `HOST:PORT` of a backend; the host may be a name, which is resolved whenever a policy is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// The host without brackets.
    pub(crate) fn new(host: &str, port: u16) -> Self {
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

    /// The backend for clients of `family`: an address of that family where the host has one (a dual-stack backend
    /// is dialled over the client's own), otherwise its first.
    pub(crate) fn backend(&self, option: &'static str, family: Family) -> Result<BackendAddr, ConfigError> {
        let addrs = self.resolve(option)?;
        let own = addrs.iter().find(|addr| family.has(BackendAddr::new(**addr).get()));
        match own.or(addrs.first()) {
            Some(&addr) => Ok(BackendAddr::new(addr)),
            None => Err(ConfigError::NoAddress { option, name: self.to_string() }),
        }
    }

    fn resolve(&self, option: &'static str) -> Result<Vec<SocketAddr>, ConfigError> {
        let addrs = (self.host.as_str(), self.port).to_socket_addrs();
        Ok(addrs.map_err(|source| ConfigError::Resolve { option, name: self.to_string(), source })?.collect())
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match split(text) {
            Some((host, port)) if !host.is_empty() => Ok(Self::new(host, port)),
            _ => {
                Err("expected HOST:PORT, such as 127.0.0.1:443, [::1]:443 or backend.example:443".to_owned())
            }
        }
    }
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

/// `[HOST]:PORT` to listen on; no host (or `*`) is every address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenAddr(HostPort);

impl ListenAddr {
    /// The host without brackets.
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self(HostPort::new(host, port))
    }

    /// The address to bind.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, ConfigError> {
        let HostPort { host, port } = &self.0;
        if host.is_empty() || host == "*" {
            return Ok(SocketAddr::new(every_address(), *port));
        }
        let first = self.0.resolve("--listen")?.into_iter().next();
        first.ok_or_else(|| ConfigError::NoAddress { option: "--listen", name: self.0.to_string() })
    }
}

/// `::` takes IPv4 connections, too; a kernel without IPv6 can't bind it.
fn every_address() -> IpAddr {
    if Path::new("/proc/net/if_inet6").exists() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match split(text) {
            Some((host, port)) => Ok(Self::new(host, port)),
            None => {
                Err("expected [ADDR]:PORT, such as 0.0.0.0:8443, [::]:8443 or :8443 (every address)"
                    .to_owned())
            }
        }
    }
}

/// Host (brackets removed) and port. An IPv6 address needs its brackets: `::1:80` is one, too.
fn split(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').filter(|inner| inner.contains(':'))?,
        None if host.contains([':', ']', ' ', '/']) => return None,
        None => host,
    };
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
    fn listeners_may_leave_the_host_out() {
        let bind = |text: &str| text.parse::<ListenAddr>().unwrap().resolve().unwrap();
        assert_eq!(bind("0.0.0.0:8443"), "0.0.0.0:8443".parse().unwrap());
        assert_eq!(bind("[::]:8443"), "[::]:8443".parse().unwrap());
        for text in [":8443", "*:8443"] {
            assert!(bind(text).ip().is_unspecified() && bind(text).port() == 8443);
        }
        for text in ["8443", "", "[::]", "::8443:", "0.0.0.0:x"] {
            assert!(text.parse::<ListenAddr>().unwrap_err().contains("expected [ADDR]:PORT"), "{text}");
        }
    }

    #[test]
    fn the_clients_family_is_preferred_and_the_other_taken_where_it_is_all_there_is() {
        let backend =
            |text: &str, family| text.parse::<HostPort>().unwrap().backend("-4", family).unwrap().to_string();
        assert_eq!(backend("127.0.0.1:1", Family::Ipv4), "127.0.0.1:1");
        assert_eq!(backend("[2001:db8::1]:1", Family::Ipv4), "[2001:db8::1]:1");
        assert_eq!(backend("[::ffff:192.0.2.1]:1", Family::Ipv4), "192.0.2.1:1");
        assert_eq!(backend("192.0.2.1:1", Family::Ipv6), "192.0.2.1:1");
        assert_eq!(backend("localhost:1", Family::Ipv4), "127.0.0.1:1");
    }

    #[test]
    fn an_unknown_host_is_named_with_its_option() {
        let error = HostPort::new("nobody.invalid", 80).backend("-4", Family::Ipv4).unwrap_err().to_string();
        assert!(error.starts_with("-4 nobody.invalid:80: can't resolve"), "{error}");
    }
}
