//! Clients of one IP family with a backend of the other.
//!
//! - IPv4 client, IPv6-only backend: `PREFIX::a.b.c.d` by RFC 6052. `::ffff:a.b.c.d` can't be bound on a
//!   socket that talks to such a backend.
//! - IPv6 client, IPv4-only backend: a class E address derived from the client's network, see
//!   [`pseudo_ipv4`].

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use ipnet::Ipv6Net;

/// An IPv6 prefix under which IPv4 clients appear; `64:ff9b::/96` is the well-known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nat64Prefix(Ipv6Net);

/// Text that is not a NAT64 prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a NAT64 prefix: expected an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits (RFC 6052 2.2), such as 64:ff9b::/96"
)]
pub struct Nat64PrefixError(String);

impl Nat64Prefix {
    /// The IPv6 address of an IPv4 client. RFC 6052 2.2: octet 8 (bits 64 to 71) stays zero, and the address
    /// is placed around it.
    pub fn embed(self, ip: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.0.network().octets();
        let mut place = usize::from(self.0.prefix_len() / 8);
        for octet in ip.octets() {
            if place == 8 {
                place += 1;
            }
            octets[place] = octet;
            place += 1;
        }
        Ipv6Addr::from(octets)
    }
}

impl FromStr for Nat64Prefix {
    type Err = Nat64PrefixError;

    fn from_str(text: &str) -> Result<Self, Nat64PrefixError> {
        let wrong = || Nat64PrefixError(text.to_owned());
        let prefix = text.parse::<Ipv6Net>().map_err(|_| wrong())?.trunc();
        let fits =
            matches!(prefix.prefix_len(), 32 | 40 | 48 | 56 | 64 | 96) && prefix.addr().octets()[8] == 0;
        fits.then_some(Self(prefix)).ok_or_else(wrong)
    }
}

impl fmt::Display for Nat64Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The class E address that stands for an IPv6 client: the same for every client of a /64, on every machine,
/// in every version, so that a backend's bans and statistics keep their meaning.
///
/// The upper 64 bits (a host changes the lower ones at will, RFC 8981) go through SplitMix64's finalizer. The
/// result modulo 2²⁸ − 1 gives 240.0.0.0 to 255.255.255.254, never the broadcast address. Two networks share
/// an address with probability 2⁻²⁸. The address is neither secret nor a proof of identity.
pub fn pseudo_ipv4(client: Ipv6Addr) -> Ipv4Addr {
    let network = u64::try_from(client.to_bits() >> 64).unwrap_or_default();
    let low = u32::try_from(mix(network) % u64::from(CLASS_E_SIZE)).unwrap_or_default();
    Ipv4Addr::from_bits(CLASS_E + low)
}

const CLASS_E: u32 = 0xf000_0000;
/// 2²⁸ without the broadcast address.
const CLASS_E_SIZE: u32 = 0x0fff_ffff;

/// SplitMix64's output function (Steele, Lea and Flood 2014): every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_6052_section_2_4_table() {
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        ] {
            let prefix: Nat64Prefix = prefix.parse().unwrap();
            assert_eq!(
                prefix.embed(Ipv4Addr::new(192, 0, 2, 33)),
                address.parse::<Ipv6Addr>().unwrap(),
                "{prefix}"
            );
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        for text in ["64:ff9b::", "64:ff9b::/95", "10.0.0.0/8", "64:ff9b::/128", "", "2001:db8::100:0:0:0/96"]
        {
            assert!(text.parse::<Nat64Prefix>().is_err(), "{text}");
        }
    }

    /// Fixed values: a change would give every client of every installation another address.
    #[test]
    fn pseudo_addresses_are_stable() {
        for (client, pseudo) in PSEUDO {
            assert_eq!(pseudo_ipv4(client.parse().unwrap()), pseudo.parse::<Ipv4Addr>().unwrap(), "{client}");
        }
    }

    const PSEUDO: [(&str, &str); 5] = [
        ("2001:db8::1", "254.237.119.6"),
        ("2001:db8::ffff:1", "254.237.119.6"),
        ("2001:db8:0:1::1", "240.33.15.138"),
        ("::", "253.40.82.40"),
        ("ffff:ffff:ffff:ffff::", "248.252.68.118"),
    ];
}
