//! Which clients a header may claim: neither this host nor an address that no host can have.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::addr::{ClientAddr, SenderAddr};
use crate::prefixes::PrefixSet;

/// Addresses that no client on the network can have. A claim of one is a mistake or an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialRange {
    /// `127.0.0.0/8`, `::1`: backends trust it.
    Loopback,
    /// `0.0.0.0/8` ("this network", RFC 1122 3.2.1.3), `::`.
    Unspecified,
    /// `224.0.0.0/4`, `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// `240.0.0.0/4` (class E): never assigned, and used by `--pseudo-ipv4`. A claim would forge such a
    /// client.
    ClassE,
    /// `::/96` (IPv4-compatible, deprecated by RFC 4291 2.5.5.1): it would bypass rules for the IPv4 address.
    Ipv4Compatible,
    /// An address of this host, whichever it is: backends trust it as they trust loopback (PostgreSQL's
    /// `samehost`, Postfix's `mynetworks_style = host`).
    Host,
}

impl SpecialRange {
    /// The range of an address (in canonical form). An address under the well-known NAT64 prefix is
    /// classified by the IPv4 address inside, which must not be a special one (RFC 6052 3.1).
    pub fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(ip) => Self::of_ipv4(ip),
            IpAddr::V6(ip) => Self::of_ipv6(ip),
        }
    }

    fn of_ipv4(ip: Ipv4Addr) -> Option<Self> {
        match ip.octets()[0] {
            0 => Some(Self::Unspecified),
            127 => Some(Self::Loopback),
            224..=239 => Some(Self::Multicast),
            _ if ip.is_broadcast() => Some(Self::Broadcast),
            240.. => Some(Self::ClassE),
            _ => None,
        }
    }

    fn of_ipv6(ip: Ipv6Addr) -> Option<Self> {
        match ip.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Some(Self::Unspecified),
            [0, 0, 0, 0, 0, 0, 0, 1] => Some(Self::Loopback),
            [0, 0, 0, 0, 0, 0, _, _] => Some(Self::Ipv4Compatible),
            [first, ..] if first >= 0xff00 => Some(Self::Multicast),
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Self::of_ipv4(low_32_bits(high, low)),
            // Only if it was not canonicalised; a mapped address is its IPv4 address.
            _ => ip.to_ipv4_mapped().and_then(Self::of_ipv4),
        }
    }
}

fn low_32_bits(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}

/// The IPv4 address under the well-known NAT64 prefix, and any other address itself.
#[must_use]
pub fn without_nat64(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => low_32_bits(high, low).into(),
            _ => ip,
        },
        IpAddr::V4(_) => ip,
    }
}

impl fmt::Display for SpecialRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::Unspecified => "an unspecified address",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::ClassE => "a class E address",
            Self::Ipv4Compatible => "an IPv4-compatible IPv6 address",
            Self::Host => "an address of this host",
        })
    }
}

/// Recognises this host's own addresses. It is called for each claim, because the addresses may change while
/// truepeer runs.
#[derive(Clone, Copy)]
pub struct HostAddresses(fn(IpAddr) -> bool);

impl HostAddresses {
    /// Calls `is_own` with an address in canonical form.
    pub fn new(is_own: fn(IpAddr) -> bool) -> Self {
        Self(is_own)
    }

    fn contains(self, ip: IpAddr) -> bool {
        (self.0)(ip)
    }
}

/// Recognises no address: all may be claimed, as with the programs behind the drop-in names.
impl Default for HostAddresses {
    fn default() -> Self {
        Self(|_| false)
    }
}

impl fmt::Debug for HostAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostAddresses")
    }
}

/// The rules for claims.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// Special addresses that may be claimed nevertheless (`--allow-claims`).
    pub allow: PrefixSet,
    /// Clients that are refused, claimed or not (`--deny-clients`).
    pub deny: PrefixSet,
    /// This host's addresses, which are special too.
    pub host: HostAddresses,
}

impl Claims {
    /// The special range of a claim: `Err` if it is refused, `Ok(Some)` if `--allow-claims` permits it with a
    /// warning.
    pub(crate) fn check(&self, claim: ClientAddr) -> Result<Option<SpecialRange>, SpecialRange> {
        self.check_range(claim, SpecialRange::of(claim.ip()))
    }

    /// The same for this host's addresses.
    ///
    /// A claim of one is refused even if it may be true (a client on this host that connects through the load
    /// balancer): a forged header looks the same. Only a sender may claim its own address, because it could
    /// send LOCAL as well, and the kernel has verified the address.
    pub(crate) fn check_host(
        &self,
        sender: SenderAddr,
        claim: ClientAddr,
    ) -> Result<Option<SpecialRange>, SpecialRange> {
        let is_claimed = claim.ip() != sender.ip() && self.host.contains(without_nat64(claim.ip()));
        self.check_range(claim, is_claimed.then_some(SpecialRange::Host))
    }

    fn check_range(
        &self,
        claim: ClientAddr,
        range: Option<SpecialRange>,
    ) -> Result<Option<SpecialRange>, SpecialRange> {
        match range {
            Some(range) if !self.allow.contains(claim.ip()) => Err(range),
            range => Ok(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_ranges_have_exact_borders() {
        use SpecialRange as S;
        for (ip, range) in [
            ("0.0.0.0", Some(S::Unspecified)),
            ("0.255.255.255", Some(S::Unspecified)),
            ("1.0.0.0", None),
            ("126.255.255.255", None),
            ("127.0.0.0", Some(S::Loopback)),
            ("127.255.255.255", Some(S::Loopback)),
            ("128.0.0.0", None),
            ("169.254.1.1", None),
            ("192.0.2.1", None),
            ("223.255.255.255", None),
            ("224.0.0.0", Some(S::Multicast)),
            ("239.255.255.255", Some(S::Multicast)),
            ("240.0.0.0", Some(S::ClassE)),
            ("255.255.255.254", Some(S::ClassE)),
            ("255.255.255.255", Some(S::Broadcast)),
            ("::", Some(S::Unspecified)),
            ("::1", Some(S::Loopback)),
            ("::2", Some(S::Ipv4Compatible)),
            ("::127.0.0.1", Some(S::Ipv4Compatible)),
            ("::1:0:0", None),
            ("::ffff:127.0.0.1", Some(S::Loopback)),
            ("::ffff:192.0.2.1", None),
            ("64:ff9b::127.0.0.1", Some(S::Loopback)),
            ("64:ff9b::192.0.2.1", None),
            ("2001:db8::1", None),
            ("fe80::1", None),
            ("feff::1", None),
            ("ff00::", Some(S::Multicast)),
            ("ff02::1", Some(S::Multicast)),
        ] {
            assert_eq!(S::of(ip.parse().unwrap()), range, "{ip}");
        }
    }
}
