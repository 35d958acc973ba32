//! The address that an operator, or an application, asks about.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::str::FromStr;

use crate::claims::{SpecialRange, without_nat64};

/// An address, with one port or with any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedAddress {
    ip: IpAddr,
    port: Option<u16>,
}

/// Text that is no [`AskedAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address: expected ADDRESS or ADDRESS:PORT, such as 203.0.113.7:50234 or [2001:db8::7]:50234"
)]
pub struct AskedAddressError(String);

/// An address that stands for a client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandIn {
    /// Of class E: for the IPv6 clients of a /64 (`--pseudo-ipv4`).
    ClassE,
    /// Below `64:ff9b::/96`: for this IPv4 client (`--nat64-prefix`).
    Nat64(Ipv4Addr),
}

impl AskedAddress {
    /// Whether this is the one.
    pub fn is(self, address: SocketAddr) -> bool {
        address.ip().to_canonical() == self.ip && self.port.is_none_or(|port| port == address.port())
    }

    /// Whether a port is asked for.
    pub fn has_port(self) -> bool {
        self.port.is_some()
    }

    /// The same with any port.
    #[must_use]
    pub fn without_port(self) -> Self {
        Self { port: None, ..self }
    }

    /// For whom the address stands, by its form.
    pub fn stand_in(self) -> Option<StandIn> {
        match (self.ip, without_nat64(self.ip)) {
            (ip, IpAddr::V4(client)) if ip.is_ipv6() => Some(StandIn::Nat64(client)),
            (ip, _) if SpecialRange::of(ip) == Some(SpecialRange::ClassE) => Some(StandIn::ClassE),
            _ => None,
        }
    }
}

impl FromStr for AskedAddress {
    type Err = AskedAddressError;

    fn from_str(text: &str) -> Result<Self, AskedAddressError> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let (ip, port) = match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
            (Ok(address), _) => (address.ip(), Some(address.port())),
            (_, Ok(ip)) => (ip, None),
            _ => return Err(AskedAddressError(text.to_owned())),
        };
        Ok(Self { ip: ip.to_canonical(), port })
    }
}

impl fmt::Display for AskedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> AskedAddress {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_asked_for_with_a_port_or_without() {
        for (text, shown) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:443", "203.0.113.7:443"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("[::ffff:203.0.113.7]:443", "203.0.113.7:443"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:443", "[2001:db8::7]:443"),
        ] {
            assert_eq!(asked(text).to_string(), shown);
        }
        for text in ["", "localhost", "203.0.113.0/24", "203.0.113.7:", "203.0.113.7:65536", ":443"] {
            assert!(text.parse::<AskedAddress>().is_err(), "{text}");
        }
        let address: SocketAddr = "[::ffff:203.0.113.7]:443".parse().unwrap();
        assert!(asked("203.0.113.7").is(address) && asked("203.0.113.7:443").is(address));
        assert!(!asked("203.0.113.7:444").is(address) && !asked("203.0.113.8").is(address));
        assert!(asked("203.0.113.7:444").without_port().is(address));
    }

    #[test]
    fn stand_ins_are_known_by_their_form() {
        assert_eq!(asked("254.237.119.6:1").stand_in(), Some(StandIn::ClassE));
        assert_eq!(asked("64:ff9b::c000:207").stand_in(), Some(StandIn::Nat64([192, 0, 2, 7].into())));
        for text in ["203.0.113.7", "2001:db8::7", "::ffff:203.0.113.7"] {
            assert_eq!(asked(text).stand_in(), None);
        }
    }
}
