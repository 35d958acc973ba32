//! A pod's annotations, or a container's labels, as rules.
//!
//! Pods' owners write them, so every value is hostile. The result holds numbers, prefixes and known words
//! only; names of files and of services are refused.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use truepeer_policy::{Dialect, PrefixSet};

use crate::rules::{Header, Port, Rules};

/// All annotations begin with this.
pub(crate) const PREFIX: &str = "truepeer.dev/";
const PORTS: &str = "ports";
const ALLOW: &str = "allow";
const HEADER: &str = "header";
const UDP_DIALECT: &str = "udp-dialect";
const NAMES: [&str; 4] = [PORTS, ALLOW, HEADER, UDP_DIALECT];

/// As many as truepeer has room for in a network namespace.
const MAX_PORTS: usize = 64;
const MAX_PREFIXES: usize = 1024;
/// So much of a wrong value is quoted.
const MAX_QUOTED: usize = 60;

const AN_ALLOW: &str = "truepeer.dev/allow: \"10.0.0.7,10.1.0.0/16\"";
const A_PORT: &str = "truepeer.dev/ports: \"80,443,53/udp\"";

/// A wrong annotation: which one, what was written, what was expected, an example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("{PREFIX}{name}: {written:?}: expected {expected}; for example {example}")]
    Value { name: &'static str, written: String, expected: &'static str, example: &'static str },
    #[error("{PREFIX}{name} is missing: expected {expected}; for example {example}")]
    Missing { name: &'static str, expected: &'static str, example: &'static str },
    #[error("{PREFIX}{written}: there is no such annotation; did you mean {PREFIX}{meant}?")]
    Name { written: String, meant: &'static str },
    #[error("{written}: there is no such annotation; did you mean {PREFIX}{meant}?")]
    Domain { written: String, meant: &'static str },
    #[error("{PREFIX}{name} lists too much: at most {limit} {of}")]
    TooMany { name: &'static str, limit: usize, of: &'static str },
    #[error("{PREFIX}{PORTS}: port {port} is listed twice, with different destinations")]
    Twice { port: u16 },
    #[error("{PREFIX}{HEADER}: {prefix} has no effect: no address of it is in {PREFIX}{ALLOW} ({allow})")]
    InVain { prefix: IpNet, allow: String },
}

/// The rules, `None` if nothing is asked for.
pub(crate) fn parse<'a>(
    annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Option<Rules>, Wrong> {
    let annotations: Vec<_> = annotations.into_iter().collect();
    if let Some(wrong) = annotations.iter().find_map(|(name, _)| near_miss(name)) {
        return Err(wrong);
    }
    let written: BTreeMap<&str, &str> = annotations
        .into_iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)))
        .collect();
    if let Some(name) = written.keys().find(|name| !NAMES.contains(name)) {
        return Err(Wrong::Name { written: quoted(name).escape_debug().to_string(), meant: nearest(name) });
    }
    if written.is_empty() {
        return Ok(None);
    }
    let Some(ports) = written.get(PORTS) else {
        return Err(Wrong::Missing { name: PORTS, expected: "the server's ports", example: A_PORT });
    };
    let Some(allow) = written.get(ALLOW) else {
        let expected = "the addresses of the load balancers that send the header";
        return Err(Wrong::Missing { name: ALLOW, expected, example: AN_ALLOW });
    };
    let allow = senders(allow)?;
    let (header, exceptions) = headers(written.get(HEADER).copied().unwrap_or_default(), &allow)?;
    let dialect = written.get(UDP_DIALECT).map_or(Ok(Dialect::default()), |text| dialect(text))?;
    Ok(Some(Rules { ports: self::ports(ports)?, allow, header, exceptions, dialect }))
}

/// Lists are separated by commas or white space.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| character == ',' || character.is_whitespace())
        .filter(|word| !word.is_empty())
}

fn ports(text: &str) -> Result<BTreeSet<Port>, Wrong> {
    let wrong = |written: &str| Wrong::Value {
        name: PORTS,
        written: quoted(written),
        expected: "ports, as numbers: 80, 8000-8010, 53/udp, or 53:5353/udp if datagrams are sent to another port than the server's",
        example: A_PORT,
    };
    let mut ports = BTreeSet::new();
    for word in words(text) {
        ports.extend(port_or_range(word).ok_or_else(|| wrong(word))?);
        if ports.len() > MAX_PORTS {
            return Err(Wrong::TooMany { name: PORTS, limit: MAX_PORTS, of: "ports" });
        }
    }
    let mut from = BTreeSet::new();
    let udp = ports.iter().filter_map(|port| match port {
        Port::Udp { from, .. } => Some(*from),
        Port::Tcp(_) => None,
    });
    if let Some(port) = udp.into_iter().find(|port| !from.insert(*port)) {
        return Err(Wrong::Twice { port });
    }
    if ports.is_empty() { Err(wrong(text)) } else { Ok(ports) }
}

/// At most [`MAX_PORTS`] and one.
fn port_or_range(word: &str) -> Option<Vec<Port>> {
    let (numbers, is_udp) = match word.split_once('/') {
        None => (word, false),
        Some((numbers, "tcp")) => (numbers, false),
        Some((numbers, "udp")) => (numbers, true),
        Some(_) => return None,
    };
    if let Some((from, backend)) = numbers.split_once(':') {
        return is_udp.then_some(vec![Port::Udp { from: number(from)?, backend: number(backend)? }]);
    }
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let range = number(first)?..=number(last)?;
    let port = |port| if is_udp { Port::Udp { from: port, backend: port } } else { Port::Tcp(port) };
    let ports: Vec<_> = range.take(MAX_PORTS + 1).map(port).collect();
    (!ports.is_empty()).then_some(ports)
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().filter(|port| *port != 0)
}

fn senders(text: &str) -> Result<BTreeSet<IpNet>, Wrong> {
    let wrong = |written: &str| Wrong::Value {
        name: ALLOW,
        written: quoted(written),
        expected: "addresses or prefixes, or private or any",
        example: AN_ALLOW,
    };
    let mut senders = BTreeSet::new();
    for word in words(text) {
        senders.extend(prefixes(word).ok_or_else(|| wrong(word))?.iter());
        if senders.len() > MAX_PREFIXES {
            return Err(Wrong::TooMany { name: ALLOW, limit: MAX_PREFIXES, of: "prefixes" });
        }
    }
    if senders.is_empty() { Err(wrong(text)) } else { Ok(senders) }
}

fn prefixes(word: &str) -> Option<PrefixSet> {
    word.parse().ok()
}

fn headers(text: &str, allow: &BTreeSet<IpNet>) -> Result<(Header, BTreeMap<IpNet, Header>), Wrong> {
    let wrong = |written: &str| Wrong::Value {
        name: HEADER,
        written: quoted(written),
        expected: "require or optional, or PREFIX=optional for some senders",
        example: "truepeer.dev/header: \"10.0.0.1=optional\"",
    };
    let rule = |word: &str| match word {
        "require" => Some(Header::Require),
        "optional" => Some(Header::Optional),
        _ => None,
    };
    let (mut all, mut some) = (None, BTreeMap::new());
    for word in words(text) {
        match word.split_once('=') {
            None => {
                let rule = rule(word).ok_or_else(|| wrong(word))?;
                if all.replace(rule).is_some_and(|before| before != rule) {
                    return Err(wrong(text));
                }
            }
            Some((prefix, name)) => {
                let prefixes = prefixes(prefix).ok_or_else(|| wrong(word))?;
                let rule = rule(name).ok_or_else(|| wrong(word))?;
                some.extend(prefixes.iter().map(|prefix| (prefix, rule)));
            }
        }
        if some.len() > MAX_PREFIXES {
            return Err(Wrong::TooMany { name: HEADER, limit: MAX_PREFIXES, of: "prefixes" });
        }
    }
    let overlaps = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    if let Some(prefix) = some.keys().find(|prefix| !allow.iter().any(|allowed| overlaps(prefix, allowed))) {
        let allow = allow.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        return Err(Wrong::InVain { prefix: *prefix, allow: quoted(&allow) });
    }
    Ok((all.unwrap_or_default(), some))
}

fn dialect(text: &str) -> Result<Dialect, Wrong> {
    text.trim().parse().map_err(|_| Wrong::Value {
        name: UDP_DIALECT,
        written: quoted(text),
        expected: "every, first, standalone (PROXY protocol v2 in each datagram, in a flow's first, or \
                   before it) or spp (Simple Proxy Protocol)",
        example: "truepeer.dev/udp-dialect: \"first\"",
    })
}

/// An annotation of truepeer's under a wrong domain, such as `truepeer.io/ports` or `truepeer/allow`.
fn near_miss(name: &str) -> Option<Wrong> {
    let (domain, last) = name.split_once('/')?;
    let meant = NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(last))?;
    let is_near = domain.to_ascii_lowercase().contains("truepeer") && !name.starts_with(PREFIX);
    is_near.then(|| Wrong::Domain { written: quoted(name).escape_debug().to_string(), meant })
}

/// The beginning, if it is long.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The annotation that was probably meant: the one with the longest common beginning.
fn nearest(written: &str) -> &'static str {
    let common =
        |name: &str| name.bytes().zip(written.bytes()).take_while(|(one, other)| one == other).count();
    NAMES.into_iter().rev().max_by_key(|name| common(name)).unwrap_or(PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(annotations: &[(&str, &str)]) -> Result<Option<Rules>, String> {
        let full: Vec<_> =
            annotations.iter().map(|(name, value)| (format!("{PREFIX}{name}"), *value)).collect();
        parse(full.iter().map(|(name, value)| (name.as_str(), *value))).map_err(|wrong| wrong.to_string())
    }

    fn shown(annotations: &[(&str, &str)]) -> String {
        parsed(annotations).unwrap().unwrap().to_string()
    }

    #[test]
    fn other_annotations_ask_for_nothing() {
        assert_eq!(parsed(&[]), Ok(None));
        assert_eq!(parse([("example.org/ports", "80")]), Ok(None));
        assert_eq!(parse([("truepeer.io/attached-by", "x")]), Ok(None));
    }

    #[test]
    fn another_domain_is_named() {
        for name in ["truepeer.io/ports", "truepeer/allow", "Truepeer.dev/ports", "www.truepeer.dev/header"] {
            let said = parse([(name, "80")]).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("{name}: there is no such annotation; did you mean truepeer.dev/")),
                "{said}"
            );
        }
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(
            shown(&[("ports", "443, 80 8000-8002,80/tcp"), ("allow", "10.0.0.7,fd00::/8\n192.0.2.77/24")]),
            "ports 80,443,8000,8001,8002; allow 10.0.0.7/32,192.0.2.0/24,fd00::/8; header require"
        );
        assert_eq!(
            shown(&[
                ("ports", "53:5353/udp,54-55/udp"),
                ("allow", "private"),
                ("header", "10.0.0.1=optional"),
                ("udp-dialect", "spp")
            ]),
            "ports 53:5353/udp,54/udp,55/udp; allow 10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7; \
             header require, 10.0.0.1/32=optional; udp-dialect spp"
        );
        assert_eq!(
            shown(&[("ports", "80"), ("allow", "::ffff:10.0.0.7"), ("header", "optional")]),
            "ports 80; allow 10.0.0.7/32; header optional"
        );
    }

    #[test]
    fn mistakes_are_quoted_with_an_example() {
        let allow = ("allow", "10.0.0.7");
        for (annotations, expected) in [
            (
                [("ports", "80;443"), allow],
                "truepeer.dev/ports: \"80;443\": expected ports, as numbers: 80, 8000-8010, 53/udp, or 53:5353/udp if datagrams \
                 are sent to another port than the server's; for example truepeer.dev/ports: \"80,443,53/udp\"",
            ),
            (
                [("port", "80"), allow],
                "truepeer.dev/port: there is no such annotation; did you mean truepeer.dev/ports?",
            ),
            (
                [("ports", "80"), ("allow", "/etc/passwd")],
                "truepeer.dev/allow: \"/etc/passwd\": expected addresses or prefixes, or private or any; for example \
                 truepeer.dev/allow: \"10.0.0.7,10.1.0.0/16\"",
            ),
            (
                [("ports", "80"), ("header", "optional")],
                "truepeer.dev/allow is missing: expected the addresses of the load balancers that send the header; for example \
                 truepeer.dev/allow: \"10.0.0.7,10.1.0.0/16\"",
            ),
            (
                [("header", "optional"), allow],
                "truepeer.dev/ports is missing: expected the server's ports; for example truepeer.dev/ports: \"80,443,53/udp\"",
            ),
        ] {
            assert_eq!(parsed(&annotations), Err(expected.to_owned()));
        }
        let wrong = |name, value| parsed(&[("ports", "80"), allow, (name, value)]).unwrap_err();
        assert_eq!(
            wrong("header", "forbid"),
            "truepeer.dev/header: \"forbid\": expected require or optional, or PREFIX=optional for some senders; for example \
             truepeer.dev/header: \"10.0.0.1=optional\""
        );
        assert_eq!(
            wrong("header", "192.0.2.1=optional"),
            "truepeer.dev/header: 192.0.2.1/32 has no effect: no address of it is in truepeer.dev/allow (10.0.0.7/32)"
        );
        assert_eq!(
            wrong("udp-dialect", "v1"),
            "truepeer.dev/udp-dialect: \"v1\": expected every, first, standalone (PROXY protocol v2 in each \
             datagram, in a flow's first, or before it) or spp (Simple Proxy Protocol); for example \
             truepeer.dev/udp-dialect: \"first\""
        );
    }

    #[test]
    fn options_files_names_and_signs_are_no_ports() {
        for written in [
            "",
            ",",
            "--pid=1",
            "-1",
            "+80",
            "0",
            "65536",
            "https",
            "./ports",
            "80/sctp",
            "5-4",
            "53:54",
            "1-2:3/udp",
        ] {
            assert!(parsed(&[("ports", written), ("allow", "any")]).is_err(), "{written}");
        }
    }

    #[test]
    fn lists_are_bounded() {
        let ports = |value: &str| parsed(&[("ports", value), ("allow", "any")]);
        assert_eq!(ports("1-65535"), Err("truepeer.dev/ports lists too much: at most 64 ports".to_owned()));
        assert!(ports("1-64").is_ok());
        assert_eq!(
            ports("53:1/udp,53:2/udp"),
            Err("truepeer.dev/ports: port 53 is listed twice, with different destinations".to_owned())
        );
        let many: Vec<_> = (0..1025).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        assert!(
            parsed(&[("ports", "80"), ("allow", &many.join(","))])
                .unwrap_err()
                .contains("at most 1024 prefixes")
        );
        let long = parsed(&[("ports", &"x".repeat(100_000)), ("allow", "any")]).unwrap_err();
        assert!(long.len() < 400, "{}", long.len());
    }

    /// Values like real ones, so that many are accepted, and arbitrary text.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            "[-0-9a-z./:,= ]{0,40}",
            "(-{0,2}[a-z]{0,6}=?)?[0-9]{1,5}(/udp|-[0-9]{1,5})?(,[0-9]{1,3}){0,3}",
            "(10\\.0\\.0\\.[0-9]{1,2}(/[0-9]{1,2})?(=optional)?,?){1,4}",
            "\\PC{0,80}",
        ]
    }

    proptest! {
        /// No value becomes an option of truepeer or the name of a file.
        #[test]
        fn arguments_are_of_known_form(ports in value(), allow in value(), header in value(), dialect in value()) {
            let annotations = [("ports", &ports), ("allow", &allow), ("header", &header), ("udp-dialect", &dialect)];
            for used in 2..=4 {
                let some: Vec<_> = annotations[..used].iter().map(|(name, value)| (*name, value.as_str())).collect();
                let Ok(Some(rules)) = parsed(&some) else { continue };
                for argument in rules.arguments() {
                    let (option, value) = argument.split_once('=').unwrap();
                    let is_prefix = |text: &str| text.parse::<IpNet>().is_ok();
                    let is_rule = |text: &str| ["require", "optional"].contains(&text);
                    let is_known = match option {
                        "--port" => value.trim_end_matches("/udp").split(':').all(|port| port.parse::<u16>().is_ok()),
                        "--allow" => is_prefix(value),
                        "--header" => value.split_once('=').map_or_else(|| is_rule(value), |(prefix, rule)| is_prefix(prefix) && is_rule(rule)),
                        "--udp-dialect" => value.parse::<Dialect>().is_ok(),
                        _ => false,
                    };
                    prop_assert!(is_known, "{argument}");
                }
            }
        }

        /// Rules that are printed and parsed again are the same.
        #[test]
        fn shown_rules_are_read_again(ports in value(), allow in value()) {
            if let Ok(Some(rules)) = parsed(&[("ports", &ports), ("allow", &allow)]) {
                let again = rules.to_string();
                let part = |name: &str| again.split("; ").find_map(|part| part.strip_prefix(name)).unwrap().trim().to_owned();
                let (ports, allow) = (part("ports"), part("allow"));
                prop_assert_eq!(parsed(&[("ports", &ports), ("allow", &allow)]), Ok(Some(rules)));
            }
        }
    }
}
