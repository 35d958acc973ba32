//! Compares the rules in the kernel, as `truepeer attach status` reports them, with the wanted rules.
//!
//! Rules can be written in several ways that mean the same, so senders are compared by what holds for their
//! addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use truepeer_policy::{HeaderRule, HeaderTimes, PrefixSet, SenderAddr, Senders, SpecialRange};

use crate::processes::Addresses;
use crate::rules::{Header, Port, Rules};
use crate::truepeer::{PortStatus, RulesInForce, SenderInForce, Status};

/// `--header-max`, unless it is given.
const HEADER_MAX: u64 = 16 * 1024;

/// `None`: exactly these rules serve, by programs of this build, and on all devices. Otherwise the first
/// difference.
pub(crate) fn difference(status: &Status, wanted: &Rules) -> Option<String> {
    if !status.attached {
        return Some("nothing is attached".to_owned());
    }
    if status.other_version {
        return Some("another version of truepeer has attached it: restart the pod".to_owned());
    }
    if !status.current {
        return Some("the programs are of another version".to_owned());
    }
    if status.cgroup_gone {
        return Some("the pod's cgroup was made anew".to_owned());
    }
    if let [device, ..] = status.uncovered.as_slice() {
        return Some(format!("the device {device} is not covered"));
    }
    let served: Vec<&PortStatus> = status.ports.iter().filter(|port| !port.draining).collect();
    let ports: Option<Vec<Port>> =
        served.iter().copied().map(ports_of).collect::<Option<Vec<_>>>().map(|all| all.concat());
    let ports: BTreeSet<Port> = ports.into_iter().flatten().collect();
    if ports != wanted.ports {
        return Some("the kernel has other ports".to_owned());
    }
    let dialect = wanted.dialect.to_string();
    if served.iter().any(|port| port.dialect.as_ref().is_some_and(|found| *found != dialect)) {
        return Some("the kernel has another dialect".to_owned());
    }
    served.iter().find_map(|port| {
        let attachment = status.attachments.iter().find(|one| one.id == port.attachment);
        match attachment.and_then(|attachment| attachment.rules.as_ref()) {
            Some(rules) => difference_of_rules(rules, wanted).map(str::to_owned),
            None => Some("truepeer does not tell the rules".to_owned()),
        }
    })
}

/// All ports of a line: `80`, `40000-41000`; those that lead to another port are in a line each.
fn ports_of(line: &PortStatus) -> Option<Vec<Port>> {
    let numbers = line.ports.split(", ").map(|run| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
    });
    let numbers = numbers.collect::<Option<Vec<_>>>()?.into_iter().flatten();
    Some(match (line.protocol.as_str(), line.backend_port) {
        ("udp", Some(backend)) => {
            let all: Vec<u16> = numbers.collect();
            // Shown by the lowest's backend: of several, each leads to its own port.
            let is_same = all.contains(&backend);
            all.into_iter()
                .map(|from| Port::Udp { from, backend: if is_same { from } else { backend } })
                .collect()
        }
        _ => numbers.map(Port::Tcp).collect(),
    })
}

fn difference_of_rules(found: &RulesInForce, wanted: &Rules) -> Option<&'static str> {
    let times = HeaderTimes::default();
    let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if !found.claims_allowed.is_empty() || !found.denied.is_empty() {
        return Some("the kernel has other rules for clients");
    }
    if found.others.values().any(|value| !is_none(value)) {
        return Some("the kernel has rules that no annotation asks for");
    }
    let is_usual = found.header_timeout_ms == milliseconds(times.timeout)
        && found.header_wait_ms == milliseconds(times.wait)
        && found.header_max == HEADER_MAX
        && found.unshowable == "show-sender"
        && found.close_after_s == wanted.silence().as_secs();
    if !is_usual {
        return Some("the kernel has other limits");
    }
    (!has_same_senders(&found.senders, wanted)).then_some("the kernel has other senders")
}

/// An address that the pod got after the attach. Programs are on no device that came with it, and a header
/// may name it as the client.
pub(crate) fn later_address(status: &Status, addresses: &Addresses) -> Option<IpAddr> {
    let known = |ip: &IpAddr| {
        let rules = status.attachments.iter().filter_map(|one| one.rules.as_ref());
        rules.into_iter().all(|rules| rules.claims_refused.iter().any(|net| net.contains(ip)))
    };
    let is_plain = |ip: &&IpAddr| SpecialRange::of(**ip).is_none();
    addresses.iter().filter(is_plain).find(|ip| !known(ip)).copied()
}

/// The senders whose headers are taken at any port.
pub(crate) fn senders(status: &Status) -> impl Iterator<Item = &IpNet> {
    let served = status.ports.iter().filter(|port| !port.draining).map(|port| port.attachment);
    let served: BTreeSet<u8> = served.collect();
    let attachments = status.attachments.iter().filter(move |one| served.contains(&one.id));
    let all = attachments.filter_map(|one| one.rules.as_ref()).flat_map(|rules| &rules.senders);
    all.filter(|one| one.header != "none").map(|one| &one.prefix)
}

fn is_none(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_u64() == Some(0),
        Value::Bool(true) => false,
    }
}

/// A rule holds from the first address of a prefix, or the one after its last, to the next such address:
/// those are compared.
fn has_same_senders(found: &[SenderInForce], wanted: &Rules) -> bool {
    let mut allow = PrefixSet::new();
    wanted.allow.iter().for_each(|prefix| allow.insert(*prefix));
    let mut policy = Senders::new(allow.clone(), rule(wanted.header));
    for (prefix, header) in &wanted.exceptions {
        let mut one = PrefixSet::new();
        one.insert(*prefix);
        policy.set_rule(&one, rule(*header));
    }
    let expected = |ip: IpAddr| {
        let is_allowed = allow.contains(ip);
        is_allowed.then(|| policy.rule(SenderAddr::new((ip, 1).into())))
    };
    let has = |ip: IpAddr| {
        let around = found.iter().filter(|one| one.prefix.contains(&ip));
        let nearest = around.max_by_key(|one| one.prefix.prefix_len()).map(|one| one.header.as_str());
        match nearest {
            Some("require") => Some(HeaderRule::Require),
            Some("optional") => Some(HeaderRule::Optional),
            _ => None,
        }
    };
    let prefixes = found.iter().map(|one| one.prefix).chain(wanted.allow.iter().copied());
    let prefixes = prefixes.chain(wanted.exceptions.keys().copied());
    let begins = prefixes.flat_map(|prefix| [Some(prefix.network()), after(prefix.broadcast())]).flatten();
    begins.map(|ip| ip.to_canonical()).all(|ip| has(ip) == expected(ip))
}

fn after(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

fn rule(header: Header) -> HeaderRule {
    match header {
        Header::Require => HeaderRule::Require,
        Header::Optional => HeaderRule::Optional,
    }
}

/// Whether new connections find rules: not if all ports are being detached. Those of another version of
/// truepeer can't be read: it is believed that they are what it was told.
pub(crate) fn serves(status: &Status) -> bool {
    status.other_version || (status.attached && status.ports.iter().any(|port| !port.draining))
}

/// For people: of what an agent before this one, or somebody by hand, has attached.
pub(crate) fn shown(status: &Status) -> String {
    if status.other_version {
        let netns = status.netns.unwrap_or(0);
        return format!("as another version of truepeer has attached it; netns {netns}; ");
    }
    let ports = status.ports.iter().filter(|port| !port.draining);
    let ports: Vec<String> = ports.map(|port| format!("{}/{}", port.ports, port.protocol)).collect();
    let rules = status.attachments.iter().filter_map(|one| one.rules.as_ref());
    let senders = rules.flat_map(|rules| &rules.senders).map(|one| format!("{} {}", one.prefix, one.header));
    let senders: BTreeSet<String> = senders.take(16).collect();
    let senders: Vec<String> = senders.into_iter().collect();
    format!(
        "ports {}; senders {}; netns {}; ",
        ports.join(", "),
        senders.join(", "),
        status.netns.unwrap_or(0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation;
    use crate::truepeer::Attachment;
    use proptest::prelude::*;

    #[test]
    fn a_pod_that_another_version_has_attached_stays_ready() {
        let status = Status { attached: true, other_version: true, netns: Some(7), ..Status::default() };
        let told = difference(&status, &rules("10.0.0.7", "require")).unwrap();
        assert!(told.contains("restart the pod"), "{told}");
        assert!(serves(&status) && shown(&status).contains("; netns 7; "));
        assert!(!serves(&Status { other_version: false, ..status }));
    }

    fn rules(allow: &str, header: &str) -> Rules {
        let annotations = [
            ("truepeer.dev/ports", "80,53/udp"),
            ("truepeer.dev/allow", allow),
            ("truepeer.dev/header", header),
        ];
        annotation::parse(annotations).unwrap().unwrap()
    }

    fn port(ports: &str, protocol: &str) -> PortStatus {
        let is_udp = protocol == "udp";
        PortStatus {
            ports: ports.to_owned(),
            protocol: protocol.to_owned(),
            backend_port: is_udp.then_some(53),
            dialect: is_udp.then(|| "every".to_owned()),
            ..PortStatus::default()
        }
    }

    fn usual(senders: &[(&str, &str)]) -> RulesInForce {
        RulesInForce {
            senders: senders
                .iter()
                .map(|(prefix, header)| SenderInForce {
                    prefix: prefix.parse().unwrap(),
                    header: (*header).to_owned(),
                })
                .collect(),
            header_timeout_ms: 5000,
            header_wait_ms: 1000,
            header_max: HEADER_MAX,
            unshowable: "show-sender".to_owned(),
            close_after_s: 60,
            ..RulesInForce::default()
        }
    }

    fn status(rules: RulesInForce) -> Status {
        Status {
            attached: true,
            current: true,
            ports: vec![port("80", "tcp"), port("53", "udp")],
            attachments: vec![Attachment { id: 0, rules: Some(rules) }],
            ..Status::default()
        }
    }

    #[test]
    fn every_rule_is_compared() {
        let wanted = rules("10.0.0.7", "");
        let senders = [("10.0.0.7/32", "require")];
        assert_eq!(difference(&status(usual(&senders)), &wanted), None);
        for other in [
            &[][..],
            &[("10.0.0.7/32", "optional")],
            &[("0.0.0.0/0", "require")],
            &[("10.0.0.7/32", "require"), ("::/0", "require")],
            &[("10.0.0.8/32", "require")],
            &[("10.0.0.7/32", "require"), ("10.0.0.9/32", "require")],
        ] {
            assert_eq!(
                difference(&status(usual(other)), &wanted).as_deref(),
                Some("the kernel has other senders")
            );
        }
        type Change = fn(&mut Status);
        let changes: [(Change, &str); 10] = [
            (|status| status.attached = false, "nothing is attached"),
            (|status| status.current = false, "the programs are of another version"),
            (|status| status.cgroup_gone = true, "the pod's cgroup was made anew"),
            (|status| status.uncovered = vec!["eth1".to_owned()], "the device eth1 is not covered"),
            (|status| status.ports[0].ports = "80-90".to_owned(), "the kernel has other ports"),
            (|status| status.ports[0].draining = true, "the kernel has other ports"),
            (|status| status.ports[1].dialect = Some("spp".to_owned()), "the kernel has another dialect"),
            (|status| status.ports[0].attachment = 1, "truepeer does not tell the rules"),
            (
                |status| {
                    let rules = status.attachments[0].rules.as_mut().unwrap();
                    rules.claims_allowed.push("127.0.0.0/8".to_owned());
                },
                "the kernel has other rules for clients",
            ),
            (
                |status| {
                    let rules = status.attachments[0].rules.as_mut().unwrap();
                    let secret = serde_json::json!([{"prefix": "10.0.0.7/32", "tlv": 224}]);
                    rules.others.insert("required_tlvs".to_owned(), secret);
                },
                "the kernel has rules that no annotation asks for",
            ),
        ];
        for (change, expected) in changes {
            let mut status = status(usual(&senders));
            change(&mut status);
            assert_eq!(difference(&status, &wanted).as_deref(), Some(expected));
        }
        // As truepeer tells them without being asked.
        let mut usual_others = usual(&senders);
        usual_others.claims_refused = vec!["10.0.0.2/32".parse().unwrap()];
        usual_others.others =
            serde_json::from_str(r#"{"required_tlvs": [], "of_a_later_truepeer": null}"#).unwrap();
        assert_eq!(difference(&status(usual_others), &wanted), None);
        // Where a flow's header comes once, the flow is forgotten earlier.
        let first = Rules { dialect: truepeer_policy::Dialect::First, ..wanted.clone() };
        let mut found = status(RulesInForce { close_after_s: 28, ..usual(&senders) });
        found.ports[1].dialect = Some("first".to_owned());
        assert_eq!(difference(&found, &first), None);
        let mut slow = usual(&senders);
        slow.header_timeout_ms = 60_000;
        assert_eq!(difference(&status(slow), &wanted).as_deref(), Some("the kernel has other limits"));
    }

    #[test]
    fn an_address_that_came_later_is_found() {
        let mut rules = usual(&[("10.0.0.7/32", "require")]);
        rules.claims_refused = vec!["10.244.0.7/32".parse().unwrap(), "fd00::7/128".parse().unwrap()];
        let status = status(rules);
        let later =
            |all: &[&str]| later_address(&status, &all.iter().map(|ip| ip.parse().unwrap()).collect());
        assert_eq!(later(&["10.244.0.7", "fd00::7"]), None);
        // Refused always, and so not listed.
        assert_eq!(later(&["10.244.0.7", "240.0.0.7"]), None);
        assert_eq!(later(&["10.244.0.7", "fd00::8"]), "fd00::8".parse().ok());
    }

    #[test]
    fn senders_are_compared_by_what_holds_for_them() {
        let wanted = rules("10.0.0.0/24,::/0", "10.0.0.1=optional");
        let same: &[&[_]] = &[
            &[("10.0.0.0/24", "require"), ("10.0.0.1/32", "optional"), ("::/0", "require")],
            &[
                ("10.0.0.0/25", "require"),
                ("10.0.0.128/25", "require"),
                ("10.0.0.1/32", "optional"),
                ("::/0", "require"),
            ],
            &[
                ("10.0.0.0/23", "none"),
                ("10.0.0.0/24", "require"),
                ("10.0.0.1/32", "optional"),
                ("::/0", "require"),
            ],
        ];
        for senders in same {
            assert!(has_same_senders(&usual(senders).senders, &wanted), "{senders:?}");
        }
        let other = [("10.0.0.0/24", "require"), ("10.0.0.1/32", "optional"), ("::/1", "require")];
        assert!(!has_same_senders(&usual(&other).senders, &wanted));
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        (0..16_u32, 26_u8..=32).prop_map(|(low, len)| {
            let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 | low << 2);
            IpNet::new(ip.into(), len).unwrap().trunc()
        })
    }

    fn header() -> impl Strategy<Value = Header> {
        prop_oneof![Just(Header::Require), Just(Header::Optional)]
    }

    proptest! {
        /// Against each address of the range.
        #[test]
        fn the_same_for_all_addresses_is_the_same(
            allow in prop::collection::btree_set(prefix(), 1..4),
            exceptions in prop::collection::btree_map(prefix(), header(), 0..3),
            found in prop::collection::btree_map(prefix(), 0..3_usize, 0..5),
        ) {
            let wanted = Rules { allow: allow.clone(), exceptions: exceptions.clone(), ..Rules::default() };
            let words = ["none", "require", "optional"];
            let one = |(prefix, word): (&IpNet, &usize)| {
                SenderInForce { prefix: *prefix, header: words[*word].to_owned() }
            };
            let told: Vec<SenderInForce> = found.iter().map(one).collect();
            let all = (0..=255_u32).map(|low| IpAddr::V4((0x0a00_0000 | low).into()));
            let all = all.chain(["::1".parse().unwrap()]);
            let is_same = all.into_iter().all(|ip| {
                let expected = allow.iter().any(|prefix| prefix.contains(&ip)).then(|| {
                    let around = exceptions.iter().filter(|(prefix, _)| prefix.contains(&ip));
                    let nearest = around.max_by_key(|(prefix, _)| prefix.prefix_len());
                    nearest.map_or_else(|| Header::Require.to_string(), |(_, header)| header.to_string())
                });
                let around = told.iter().filter(|one| one.prefix.contains(&ip));
                let nearest = around.max_by_key(|one| one.prefix.prefix_len());
                nearest.map(|one| one.header.clone()).filter(|word| word != "none") == expected
            });
            prop_assert_eq!(has_same_senders(&told, &wanted), is_same);
        }
    }
}
