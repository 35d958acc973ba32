//! Which senders may connect, and whether their connections start with a header. The sender's address
//! determines both, before its first byte is read.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use truepeer_proto::Header;

use crate::addr::SenderAddr;
use crate::prefixes::{PrefixSet, host};
use crate::proof::Proof;

/// Whether a sender's connections start with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderRule {
    /// Every connection starts with one; otherwise it is refused.
    #[default]
    Require,
    /// A connection may start with one. Every admitted host can then claim any client, so use it for listed
    /// senders only.
    Optional,
    /// No connection starts with one: the first byte belongs to the backend, whatever it looks like.
    Forbid,
}

/// Text that is not a header rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a header rule: expected require, optional or forbid")]
pub struct ParseHeaderRuleError(String);

impl HeaderRule {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Optional => "optional",
            Self::Forbid => "forbid",
        }
    }
}

impl FromStr for HeaderRule {
    type Err = ParseHeaderRuleError;

    fn from_str(text: &str) -> Result<Self, ParseHeaderRuleError> {
        [Self::Require, Self::Optional, Self::Forbid]
            .into_iter()
            .find(|rule| rule.as_str() == text)
            .ok_or_else(|| ParseHeaderRuleError(text.to_owned()))
    }
}

impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A header is optional for so many addresses that they can't be a list of load balancers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a header is optional for more than half of all {family} addresses: any host there could forge one")]
pub struct OptionalForMost {
    family: &'static str,
}

/// The allow-list and the header rules of one listener.
#[derive(Clone)]
pub struct Senders {
    /// Which senders may connect. Fails closed: an empty set admits none.
    pub allow: PrefixSet,
    /// The rule for senders without an own one.
    pub header: HeaderRule,
    /// Rules by sender prefix; the longest matching prefix applies.
    exceptions: JointPrefixMap<IpNet, HeaderRule>,
    /// What headers must have, by sender prefix; the longest matching prefix applies.
    proofs: JointPrefixMap<IpNet, Proof>,
}

impl Senders {
    /// These senders, one rule for all.
    pub fn new(allow: PrefixSet, header: HeaderRule) -> Self {
        Self { allow, header, exceptions: JointPrefixMap::new(), proofs: JointPrefixMap::new() }
    }

    /// Sets the rule of the senders in `prefixes`. It does not admit them.
    pub fn set_rule(&mut self, prefixes: &PrefixSet, rule: HeaderRule) {
        for prefix in prefixes.iter() {
            self.exceptions.insert(prefix, rule);
        }
    }

    /// Headers of the senders in `prefixes` count only with this proof.
    pub fn set_proof(&mut self, prefixes: &PrefixSet, proof: &Proof) {
        for prefix in prefixes.iter() {
            self.proofs.insert(prefix, proof.clone());
        }
    }

    /// The proof that a sender's headers must have.
    pub fn proof(&self, sender: SenderAddr) -> Option<&Proof> {
        self.proofs.get_lpm(&host(sender.ip())).map(|(_, proof)| proof)
    }

    /// Whether a TLV of this type is some sender's secret: it must not be shown, whoever sent it.
    pub fn is_secret(&self, kind: u8) -> bool {
        self.proofs.iter().any(|(_, proof)| proof.kind() == kind)
    }

    /// A sender's header without the TLV by which it proves itself: what may be shown, and passed on.
    #[must_use]
    pub fn without_proof<'a>(&self, sender: SenderAddr, header: Header<'a>) -> Header<'a> {
        let tlvs = self.proof(sender).map_or(header.tlvs, |proof| header.tlvs.without(proof.kind()));
        Header { tlvs, ..header }
    }

    /// The rule for a sender, whether or not it is admitted.
    pub fn rule(&self, sender: SenderAddr) -> HeaderRule {
        self.rule_of(sender.ip())
    }

    fn rule_of(&self, ip: IpAddr) -> HeaderRule {
        self.exceptions.get_lpm(&host(ip)).map_or(self.header, |(_, rule)| *rule)
    }

    /// Checks that the senders with an optional header can be a list of load balancers, whether they come
    /// from the default rule or from exceptions, as one prefix or as several.
    ///
    /// # Errors
    /// They are more than half of all IPv4 or of all IPv6 addresses.
    pub fn check(&self) -> Result<(), OptionalForMost> {
        for (family, first) in
            [("IPv4", IpAddr::from(Ipv4Addr::UNSPECIFIED)), ("IPv6", Ipv6Addr::UNSPECIFIED.into())]
        {
            let half = if first.is_ipv4() { u128::from(u32::MAX) / 2 } else { u128::MAX / 2 };
            if self.count_optional(first) > half {
                return Err(OptionalForMost { family });
            }
        }
        Ok(())
    }

    /// How many addresses may send without a header, in the family whose lowest address is `first`. All
    /// addresses between two borders of prefixes have the same rule. Counts one too few for each border,
    /// because 2^128 does not fit in a u128.
    fn count_optional(&self, first: IpAddr) -> u128 {
        let allowed = self.allow.iter();
        let prefixes = allowed.chain(self.exceptions.iter().map(|(prefix, _)| prefix));
        let mut borders: Vec<u128> = prefixes
            .filter(|prefix| prefix.addr().is_ipv4() == first.is_ipv4())
            .flat_map(|prefix| [Some(bits(prefix.network())), bits(prefix.broadcast()).checked_add(1)])
            .flatten()
            .collect();
        let last = if first.is_ipv4() { u128::from(u32::MAX) } else { u128::MAX };
        borders.extend([0, last]);
        borders.sort_unstable();
        borders.dedup();
        let is_optional = |number: u128| {
            let ip = address(number, first.is_ipv4());
            self.allow.contains(ip) && self.rule_of(ip) == HeaderRule::Optional
        };
        let lengths =
            borders.windows(2).filter(|pair| is_optional(pair[0])).map(|pair| pair[1] - pair[0] - 1);
        lengths.fold(0, u128::saturating_add)
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(bits: u128, is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).into()
    } else {
        Ipv6Addr::from_bits(bits).into()
    }
}

/// Loopback senders only, with a required header.
impl Default for Senders {
    fn default() -> Self {
        Self::new(PrefixSet::loopback(), HeaderRule::Require)
    }
}

impl fmt::Debug for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exceptions: Vec<_> = self.exceptions.iter().map(|(prefix, rule)| (prefix, *rule)).collect();
        f.debug_struct("Senders")
            .field("allow", &self.allow)
            .field("header", &self.header)
            .field("exceptions", &exceptions)
            .field("proofs", &self.proofs.iter().collect::<Vec<_>>())
            .finish()
    }
}
