//! Converts prefix sets to entries of the programs' longest-prefix tables. These contain only IPv6: IPv4 is
//! `::ffff:0:0/96`.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use truepeer_policy::{Claims, HeaderRule, PrefixSet, SpecialRange};

/// An entry that means the same as no entry.
pub(crate) const NOTHING: u32 = 0;
/// `enum rule`.
const REQUIRE: u32 = 1;
/// `enum rule`.
const OPTIONAL: u32 = 2;
/// `enum claim`.
pub(crate) const REFUSED: u32 = 1;
/// `enum claim`.
const ALLOWED: u32 = 2;
/// In the deny table.
pub(crate) const DENIED: u32 = 1;

/// A prefix of 128 bits and its value.
pub(crate) type Entry = (Ipv6Net, u32);

const MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);

/// The ranges of [`truepeer_policy::SpecialRange`]. A test compares the two.
const SPECIAL: [&str; 10] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "ff00::/8",
    // The special IPv4 addresses under the well-known NAT64 prefix.
    "64:ff9b::/104",
    "64:ff9b::7f00:0/104",
    "64:ff9b::e000:0/100",
    "64:ff9b::f000:0/100",
];

pub(crate) fn to_ipv6(net: IpNet) -> Ipv6Net {
    match net {
        IpNet::V6(net) => net,
        IpNet::V4(net) => mapped(net),
    }
}

fn mapped(net: Ipv4Net) -> Ipv6Net {
    // At most 32 bits are added to 96.
    Ipv6Net::new_assert(net.network().to_ipv6_mapped(), 96 + net.prefix_len())
}

/// Each prefix with one value. A wide IPv6 prefix must not apply to IPv4, although it contains the mapped
/// addresses.
fn of_set(set: &PrefixSet, value: u32) -> Vec<Entry> {
    of_prefixes(set.iter().map(|net| (net, value)))
}

pub(crate) fn of_prefixes(prefixes: impl Iterator<Item = (IpNet, u32)>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut holds_mapped = false;
    for (net, value) in prefixes {
        match net {
            IpNet::V6(net) if MAPPED.contains(&net) => {} // never looked up: addresses are canonical
            net => {
                holds_mapped |= net.addr().is_ipv6() && to_ipv6(net).contains(&MAPPED);
                entries.push((to_ipv6(net), value));
            }
        }
    }
    if holds_mapped && !entries.iter().any(|(net, _)| *net == MAPPED) {
        entries.push((MAPPED, NOTHING));
    }
    entries
}

/// Who may send, and by which rule. Prefixes are nested or disjoint, so one rule holds for the addresses of a
/// prefix that are in no longer one: that of the longest exception around it, if a sender's prefix is around
/// it.
pub(crate) fn senders(
    senders: &PrefixSet,
    header: HeaderRule,
    exceptions: &BTreeMap<IpNet, HeaderRule>,
) -> Vec<Entry> {
    let is_allowed = |net: &IpNet| senders.iter().any(|allowed| allowed.contains(net));
    let rule_of = |net: &IpNet| {
        let around = exceptions.iter().filter(|(exception, _)| exception.contains(net));
        around.max_by_key(|(exception, _)| exception.prefix_len()).map_or(header, |(_, rule)| *rule)
    };
    let prefixes: BTreeSet<IpNet> =
        senders.iter().chain(exceptions.keys().copied()).filter(is_allowed).collect();
    of_prefixes(prefixes.into_iter().map(|net| (net, value_of(rule_of(&net)))))
}

/// `enum rule`.
fn value_of(rule: HeaderRule) -> u32 {
    match rule {
        HeaderRule::Require => REQUIRE,
        HeaderRule::Optional => OPTIONAL,
        // Packets of senders that are not listed pass unchanged.
        HeaderRule::Forbid => NOTHING,
    }
}

/// The rule of an entry of [`senders`]; `None`: its packets pass unchanged.
pub(crate) fn rule_of(value: u32) -> Option<HeaderRule> {
    match value {
        REQUIRE => Some(HeaderRule::Require),
        OPTIONAL => Some(HeaderRule::Optional),
        _ => None,
    }
}

/// As it was written: IPv4 without the prefix that it has in the tables.
pub(crate) fn to_net(net: Ipv6Net) -> IpNet {
    let ipv4 = net.network().to_ipv4_mapped().filter(|_| MAPPED.contains(&net));
    let len = net.prefix_len().saturating_sub(MAPPED.prefix_len());
    let ipv4 = ipv4.and_then(|ip| Ipv4Net::new(ip, len).ok());
    ipv4.map_or(IpNet::V6(net), IpNet::V4)
}

/// Of a list of [`claims`]: the claims that it allows although they are special, and those that it refuses
/// although they are not.
pub(crate) fn exceptional_claims(list: &[Entry]) -> (Vec<IpNet>, Vec<IpNet>) {
    let special: Vec<IpNet> = SPECIAL.iter().filter_map(|text| text.parse().ok()).collect();
    let is_refused = |range: &IpNet| {
        let around = list.iter().filter(|(net, _)| net.contains(&to_ipv6(*range)));
        around.max_by_key(|(net, _)| net.prefix_len()).is_some_and(|(_, value)| *value == REFUSED)
    };
    let inside = list.iter().filter(|(_, value)| *value == ALLOWED).map(|(net, _)| to_net(*net));
    let allowed = special.iter().copied().filter(|range| !is_refused(range)).chain(inside).collect();
    let refused = list.iter().filter(|(_, value)| *value == REFUSED).map(|(net, _)| to_net(*net));
    (allowed, refused.filter(|net| !special.contains(net)).collect())
}

/// The claims that are refused. Prefixes are nested or disjoint: a special range inside an allowed one is
/// left out, an allowed one inside a special one is a separate entry, and the longest prefix applies. Each
/// address of this host is an entry; IPv4 ones also under the well-known NAT64 prefix.
pub(crate) fn claims(claims: &Claims, own: &BTreeSet<IpAddr>) -> Vec<Entry> {
    let special = SPECIAL.iter().filter_map(|text| text.parse::<IpNet>().ok());
    let is_allowed = |range: &IpNet| claims.allow.iter().any(|allowed| allowed.contains(range));
    let mut entries: Vec<Entry> =
        special.filter(|range| !is_allowed(range)).map(|range| (to_ipv6(range), REFUSED)).collect();
    let refused: Vec<Ipv6Net> = entries.iter().map(|(net, _)| *net).collect();
    let inside = |net: &Ipv6Net| refused.iter().any(|range| range.contains(net));
    entries.extend(of_set(&claims.allow, ALLOWED).into_iter().filter(|(net, _)| inside(net)));
    let own = own.iter().flat_map(|ip| [Some(*ip), under_nat64(*ip)]).flatten();
    let is_plain = |ip: &IpAddr| SpecialRange::of(*ip).is_none();
    entries.extend(
        own.filter(is_plain).filter(|ip| !claims.allow.contains(*ip)).map(|ip| (to_ipv6(ip.into()), REFUSED)),
    );
    entries
}

/// How an IPv6-only backend may see an IPv4 address (RFC 6052 2.1).
fn under_nat64(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V4(ip) = ip else { return None };
    Some(Ipv6Addr::from_bits((0x0064_ff9b << 96) | u128::from(ip.to_bits())).into())
}

/// Clients that are refused.
pub(crate) fn denied(claims: &Claims) -> Vec<Entry> {
    of_set(&claims.deny, DENIED)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use truepeer_policy::{SenderAddr, Senders};

    use super::*;

    /// The value that the kernel finds.
    fn look_up(entries: &[Entry], ip: IpAddr) -> u32 {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let found =
            entries.iter().filter(|(net, _)| net.contains(&ip)).max_by_key(|(net, _)| net.prefix_len());
        found.map_or(NOTHING, |(_, value)| *value)
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        let near = |ip: u128| prop_oneof![Just(ip), any::<u32>().prop_map(move |low| ip ^ u128::from(low))];
        let v6 = prop_oneof![
            any::<u128>(),
            near(0),
            near(0xff << 120),
            near(0x0064_ff9b << 96),
            near(0x2001_0db8 << 96),
            near(0xffff << 32),
        ];
        prop_oneof![
            any::<u32>().prop_map(|ip| IpAddr::from(ip.to_be_bytes())),
            v6.prop_map(|ip| Ipv6Addr::from(ip).to_canonical()),
        ]
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        (address(), 0_u8..=128).prop_map(|(ip, len)| {
            let len = if ip.is_ipv4() { len % 33 } else { len };
            IpNet::new(ip, len).map(|net| net.trunc()).expect("a length in range")
        })
    }

    fn set(prefixes: &[IpNet]) -> PrefixSet {
        let mut set = PrefixSet::new();
        prefixes.iter().for_each(|prefix| set.insert(*prefix));
        set
    }

    proptest! {
        #[test]
        fn senders_are_those_of_the_policy(
            prefixes in prop::collection::vec(prefix(), 0..6),
            ips in prop::collection::vec(address(), 32),
        ) {
            let allow = set(&prefixes);
            let entries = senders(&allow, HeaderRule::Require, &BTreeMap::new());
            for ip in ips.into_iter().chain(prefixes.iter().map(|prefix| prefix.addr())) {
                prop_assert_eq!(look_up(&entries, ip) == REQUIRE, allow.contains(ip), "{}", ip);
            }
        }

        #[test]
        fn each_senders_rule_is_that_of_the_policy(
            prefixes in prop::collection::vec(prefix(), 0..6),
            exceptions in prop::collection::vec((prefix(), 0..3_usize), 0..6),
            is_nested in any::<bool>(),
            header in 0..3_usize,
            ips in prop::collection::vec(address(), 32),
        ) {
            const RULES: [HeaderRule; 3] = [HeaderRule::Require, HeaderRule::Optional, HeaderRule::Forbid];
            let allow = set(&prefixes);
            let mut policy = Senders::new(allow.clone(), RULES[header]);
            let mut rules = BTreeMap::new();
            for (n, (prefix, rule)) in exceptions.iter().enumerate() {
                // Many in or around those that are allowed.
                let near = prefixes.get(n % prefixes.len().max(1)).filter(|_| is_nested);
                let near = near.and_then(|near| IpNet::new(near.addr(), prefix.prefix_len().min(near.max_prefix_len())).ok());
                let prefix = near.map_or(*prefix, |near| near.trunc());
                policy.set_rule(&set(&[prefix]), RULES[*rule]);
                rules.insert(prefix, RULES[*rule]);
            }
            let entries = senders(&allow, RULES[header], &rules);
            let ends = prefixes.iter().chain(rules.keys()).flat_map(|prefix| [prefix.network(), prefix.broadcast()]);
            for ip in ips.into_iter().chain(ends).map(|ip| ip.to_canonical()) {
                let rule = policy.rule(SenderAddr::new(std::net::SocketAddr::new(ip, 1)));
                let expected = if allow.contains(ip) { value_of(rule) } else { NOTHING };
                prop_assert_eq!(look_up(&entries, ip), expected, "{}", ip);
                let told = entries.iter().map(|(net, value)| (to_net(*net), rule_of(*value)));
                let around = told.filter(|(net, _)| net.contains(&ip));
                let nearest = around.max_by_key(|(net, _)| net.prefix_len()).and_then(|(_, rule)| rule);
                prop_assert_eq!(nearest.map_or(NOTHING, value_of), expected, "{}", ip);
            }
        }

        #[test]
        fn claims_are_judged_as_by_the_policy(
            prefixes in prop::collection::vec(prefix(), 0..6),
            own in prop::collection::vec(address(), 0..4),
            ips in prop::collection::vec(address(), 32),
        ) {
            let rules = Claims { allow: set(&prefixes), ..Claims::default() };
            let own = own.into_iter().map(|ip| ip.to_canonical()).collect();
            let entries = claims(&rules, &own);
            let prefixes = prefixes.iter().map(|prefix| prefix.addr());
            for ip in ips.into_iter().chain(prefixes).chain(own.iter().copied()) {
                let is_special = SpecialRange::of(ip).is_some() || own.contains(&ip.to_canonical());
                let refused = is_special && !rules.allow.contains(ip);
                prop_assert_eq!(look_up(&entries, ip) == REFUSED, refused, "{}", ip);
            }
            let (allowed, refused) = exceptional_claims(&entries);
            prop_assert_eq!(allowed.is_empty(), SPECIAL.iter().all(|text| {
                let range: IpNet = text.parse().expect("a prefix");
                rules.allow.iter().all(|prefix| !range.contains(&prefix) && !prefix.contains(&range))
            }), "{:?}", allowed);
            prop_assert!(refused.iter().all(|net| net.prefix_len() == net.max_prefix_len()));
        }
    }
}
