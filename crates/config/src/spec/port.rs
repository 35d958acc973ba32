//! Ports as `run --port` and `attach --port` accept them: numbers, ranges, service names, and lists with
//! commas.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::address::about;

/// TCP ports: `443`, `80,443`, `8000-8010`, `https`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ports(pub(crate) Vec<u16>);

/// More would be a mistake.
const MOST: usize = 1024;
/// The ports of a longer range are counted together.
const COUNTED_ALONE: usize = 8;
/// The kernel's table of ports has no room for more.
const MOST_ATTACHED: usize = 4096;

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ports = Vec::new();
        for part in text.split(',') {
            ports.extend(range(part, "tcp")?);
        }
        at_most(MOST, ports).map(Self)
    }
}

/// A value of `attach --port`: `443`, `443/tcp`, `53/udp`, `53:5353/udp`, `80,443`, `8000-8010`,
/// `domain/udp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachPorts(pub Vec<Port>, pub Vec<Range>);

/// A range as it was given, whose ports are counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub(crate) is_udp: bool,
    pub(crate) ports: RangeInclusive<u16>,
}

/// A port that a running server listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    Tcp(u16),
    /// Datagrams sent to `from` belong to the server that is bound to `backend`.
    Udp {
        from: u16,
        backend: u16,
    },
}

/// As it is written.
impl fmt::Display for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(port) => write!(out, "{port}"),
            Self::Udp { from, backend } if from == backend => write!(out, "{from}/udp"),
            Self::Udp { from, backend } => write!(out, "{from}:{backend}/udp"),
        }
    }
}

impl AttachPorts {
    pub(crate) fn has_udp(&self) -> bool {
        self.0.iter().any(|port| matches!(port, Port::Udp { .. }))
    }
}

impl FromStr for AttachPorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut ports, mut ranges) = (Vec::new(), Vec::new());
        for part in text.split(',') {
            let (numbers, is_udp) = match part.strip_suffix("/udp") {
                Some(numbers) => (numbers, true),
                None => (part.strip_suffix("/tcp").unwrap_or(part), false),
            };
            if let Some((from, backend)) = numbers.split_once([':', '→']) {
                ports.push(mapped(one(from)?, one(backend)?, is_udp)?);
                continue;
            }
            let range = range(numbers, if is_udp { "udp" } else { "tcp" })?;
            ports.extend(range.clone().map(|port| match is_udp {
                true => Port::Udp { from: port, backend: port },
                false => Port::Tcp(port),
            }));
            ranges.extend((range.len() > COUNTED_ALONE).then_some(Range { is_udp, ports: range }));
        }
        Ok(Self(at_most(MOST_ATTACHED, ports)?, ranges))
    }
}

fn mapped(from: u16, backend: u16, is_udp: bool) -> Result<Port, String> {
    match is_udp {
        true => Ok(Port::Udp { from, backend }),
        false if from == backend => Ok(Port::Tcp(from)),
        false => Err("only UDP ports can be mapped: FROM:PORT/udp".to_owned()),
    }
}

fn at_most<T>(most: usize, ports: Vec<T>) -> Result<Vec<T>, String> {
    match ports.len() {
        many if many > most => Err(format!(
            "{many} ports; expected at most {most} (more of them: truepeer proxy --listen-transparent)"
        )),
        _ => Ok(ports),
    }
}

fn range(text: &str, protocol: &str) -> Result<RangeInclusive<u16>, String> {
    if let Some(port) = number(text).or_else(|| service(text, protocol)) {
        return Ok(port..=port);
    }
    let range = text.split_once('-').and_then(|(first, last)| Some(number(first)?..=number(last)?));
    range.filter(|range| !range.is_empty()).ok_or_else(|| wrong(text))
}

fn one(text: &str) -> Result<u16, String> {
    number(text).or_else(|| service(text, "udp")).ok_or_else(|| wrong(text))
}

fn wrong(text: &str) -> String {
    let about = about(text);
    format!(
        "expected a port such as 443, several (80,443), a range (8000-8010), a service's name (https) or, with attach, 53/udp{about}"
    )
}

fn number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0 && !text.starts_with('+'))
}

/// A name of services(5). Three names work without that file.
fn service(name: &str, protocol: &str) -> Option<u16> {
    let known = [("http", 80), ("https", 443), ("domain", 53)];
    if let Some((_, port)) = known.iter().find(|(known, _)| *known == name) {
        return Some(*port);
    }
    let services = std::fs::read_to_string("/etc/services").unwrap_or_default();
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let first = words.next()?;
        let (port, its_protocol) = words.next()?.split_once('/')?;
        let is_named = first == name || words.any(|alias| alias == name);
        (is_named && its_protocol == protocol).then(|| number(port)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(text: &str) -> Result<Vec<Port>, String> {
        text.parse().map(|ports: AttachPorts| ports.0)
    }

    #[test]
    fn ports_are_numbers_with_a_protocol() {
        assert_eq!(attach("443"), Ok(vec![Port::Tcp(443)]));
        assert_eq!(attach("2222/tcp"), Ok(vec![Port::Tcp(2222)]));
        assert_eq!(attach("53/udp"), Ok(vec![Port::Udp { from: 53, backend: 53 }]));
        for text in ["53:5353/udp", "53→5353/udp"] {
            assert_eq!(attach(text), Ok(vec![Port::Udp { from: 53, backend: 5353 }]));
        }
        for text in [
            "",
            "0",
            "65536",
            "+1",
            "443/sctp",
            "nosuch",
            "443/",
            ":53/udp",
            "53:/udp",
            "1:2:3/udp",
            "90-80",
            "80,",
            "80-",
        ] {
            assert!(attach(text).is_err_and(|error| error.contains("expected a port")), "{text}");
        }
        assert!(attach("80:8080").is_err_and(|error| error.contains("only UDP")));
    }

    #[test]
    fn several_ports_are_a_list_a_range_or_names() {
        assert_eq!(attach("80,443"), Ok(vec![Port::Tcp(80), Port::Tcp(443)]));
        assert_eq!(attach("53/udp,853"), Ok(vec![Port::Udp { from: 53, backend: 53 }, Port::Tcp(853)]));
        assert_eq!(attach("80-82").map(|ports| ports.len()), Ok(3));
        assert_eq!(attach("http,https/tcp"), Ok(vec![Port::Tcp(80), Port::Tcp(443)]));
        assert_eq!("8000-8002,https".parse(), Ok(Ports(vec![8000, 8001, 8002, 443])));
        assert_eq!(attach("40000-41000").map(|ports| ports.len()), Ok(1001));
        assert!(attach("1-65535").is_err_and(|error| error.contains("expected at most 4096")));
        assert!("1-65535".parse::<Ports>().is_err_and(|error| error.contains("expected at most 1024")));
    }
}
