//! What shall be attached to one pod or container, and the words by which the program `truepeer` is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ipnet::IpNet;
use truepeer_policy::Dialect;

/// A port that the server listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Port {
    Tcp(u16),
    /// `from`: the port that datagrams are sent to.
    Udp {
        from: u16,
        backend: u16,
    },
}

/// Whether connections begin with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Header {
    #[default]
    Require,
    Optional,
}

/// Rules are made by [`crate::annotation`] alone: they hold numbers, prefixes and words of ours, so that no
/// text of a pod's owner becomes an argument.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rules {
    pub(crate) ports: BTreeSet<Port>,
    pub(crate) allow: BTreeSet<IpNet>,
    pub(crate) header: Header,
    /// The rules of some senders.
    pub(crate) exceptions: BTreeMap<IpNet, Header>,
    pub(crate) dialect: Dialect,
}

impl Rules {
    /// As options of `truepeer attach`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self.ports.iter().map(|port| format!("--port={port}")).collect();
        arguments.extend(self.allow.iter().map(|prefix| format!("--allow={prefix}")));
        arguments.push(format!("--header={}", self.header));
        arguments.extend(self.exceptions.iter().map(|(prefix, rule)| format!("--header={prefix}={rule}")));
        if self.has_udp() {
            arguments.push(format!("--udp-dialect={}", self.dialect));
        }
        arguments
    }

    pub(crate) fn has_tcp(&self) -> bool {
        self.ports.iter().any(|port| matches!(port, Port::Tcp(_)))
    }

    /// `--close-after`, which depends on the dialect unless it is given.
    pub(crate) fn silence(&self) -> Duration {
        let dialect = if self.has_udp() { self.dialect } else { Dialect::default() };
        dialect.default_silence()
    }

    fn has_udp(&self) -> bool {
        self.ports.iter().any(|port| matches!(port, Port::Udp { .. }))
    }
}

/// For people, always the same for the same rules.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ports {}; allow {}; header {}", list(&self.ports), list(&self.allow), self.header)?;
        self.exceptions.iter().try_for_each(|(prefix, rule)| write!(f, ", {prefix}={rule}"))?;
        if self.has_udp() {
            write!(f, "; udp-dialect {}", self.dialect)?;
        }
        Ok(())
    }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(port) => write!(f, "{port}"),
            Self::Udp { from, backend } if from == backend => write!(f, "{from}/udp"),
            Self::Udp { from, backend } => write!(f, "{from}:{backend}/udp"),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Require => "require",
            Self::Optional => "optional",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_everything() {
        let rules = Rules {
            ports: [Port::Tcp(80), Port::Udp { from: 53, backend: 5353 }].into(),
            allow: ["10.0.0.7/32".parse().unwrap()].into(),
            header: Header::Require,
            exceptions: [("10.0.0.1/32".parse().unwrap(), Header::Optional)].into(),
            dialect: Dialect::Spp,
        };
        let expected = [
            "--port=80",
            "--port=53:5353/udp",
            "--allow=10.0.0.7/32",
            "--header=require",
            "--header=10.0.0.1/32=optional",
            "--udp-dialect=spp",
        ];
        assert_eq!(rules.arguments(), expected);
        assert_eq!(
            rules.to_string(),
            "ports 80,53:5353/udp; allow 10.0.0.7/32; header require, 10.0.0.1/32=optional; udp-dialect spp"
        );
    }
}
