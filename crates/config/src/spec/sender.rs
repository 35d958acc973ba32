//! `--sender`: what is known about a program or service that writes headers.

use std::fmt;
use std::str::FromStr;

use truepeer_policy::{Dialect, ParseDialectError};
use truepeer_proto::Versions;

/// A sender by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderName {
    AwsNlb,
    Dnsdist,
    EdgeOne,
    Frp,
    Haproxy,
    Nginx,
    Spectrum,
}

impl SenderName {
    const ALL: [Self; 7] =
        [Self::AwsNlb, Self::Dnsdist, Self::EdgeOne, Self::Frp, Self::Haproxy, Self::Nginx, Self::Spectrum];

    /// As it is typed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AwsNlb => "aws-nlb",
            Self::Dnsdist => "dnsdist",
            Self::EdgeOne => "edgeone",
            Self::Frp => "frp",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Spectrum => "spectrum",
        }
    }

    /// Where its datagrams have the header. `None`: it sends none, or that has not been measured.
    pub const fn dialect(self) -> Option<Dialect> {
        match self {
            Self::Dnsdist => Some(Dialect::Every),
            Self::Frp | Self::Nginx => Some(Dialect::First),
            Self::Spectrum => Some(Dialect::Standalone),
            Self::EdgeOne => Some(Dialect::Spp),
            Self::AwsNlb | Self::Haproxy => None,
        }
    }

    /// The versions of the header that it can be told to write.
    pub const fn versions(self) -> Versions {
        match self {
            Self::AwsNlb | Self::Dnsdist => Versions::V2,
            _ => Versions::BOTH,
        }
    }

    /// Whether its header comes with the client's first bytes. A server that speaks first then waits for the
    /// header, and the client for the server.
    pub const fn sends_header_late(self) -> bool {
        matches!(self, Self::AwsNlb)
    }

    /// How its health checks come, where that is known.
    const fn health_checks(self) -> &'static str {
        match self {
            Self::AwsNlb | Self::Dnsdist | Self::Haproxy => {
                "; its health checks bring a header that names no client, and are served as the sender"
            }
            Self::Frp => "; its healthCheck brings no header: of type http it needs --header optional",
            Self::EdgeOne | Self::Nginx | Self::Spectrum => "",
        }
    }

    /// What the name stands for, in options.
    pub(crate) fn sets(self, header: impl fmt::Display, dialect: Option<Dialect>) -> String {
        let versions = if self.versions() == Versions::V2 { "version 2 only" } else { "version 1 or 2" };
        let dialect = dialect.map(|dialect| format!(", --udp-dialect {dialect}")).unwrap_or_default();
        let health_checks = self.health_checks();
        format!("--sender {self} means --header {header} ({versions}){dialect}{health_checks}")
    }
}

impl fmt::Display for SenderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SenderName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|sender| sender.as_str().eq_ignore_ascii_case(text));
        named.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str);
            let [names @ .., last] = names;
            format!("expected {} or {last}; others need no name: leave it out", names.join(", "))
        })
    }
}

/// `--udp-dialect`: a dialect, or the name of a sender that writes it.
pub(super) fn dialect(text: &str) -> Result<Dialect, ParseDialectError> {
    let text = text.to_ascii_lowercase();
    match text.as_str() {
        "udppp" => return Ok(Dialect::Every),
        "spectrum-simple" => return Ok(Dialect::Spp),
        _ => {}
    }
    let sender = text.parse().ok().and_then(SenderName::dialect);
    sender.map_or_else(|| text.parse(), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_may_be_named_by_who_writes_it() {
        for (typed, meant) in [
            ("every", Dialect::Every),
            ("dnsdist", Dialect::Every),
            ("udppp", Dialect::Every),
            ("first", Dialect::First),
            ("frp", Dialect::First),
            ("NGINX", Dialect::First),
            ("spectrum", Dialect::Standalone),
            ("edgeone", Dialect::Spp),
            ("spectrum-simple", Dialect::Spp),
        ] {
            assert_eq!(dialect(typed), Ok(meant), "{typed}");
        }
        assert!(dialect("haproxy").is_err() && dialect("aws-nlb").is_err() && dialect("").is_err());
    }

    #[test]
    fn each_name_is_read_as_it_is_written() {
        for sender in SenderName::ALL {
            assert_eq!(sender.to_string().parse(), Ok(sender));
        }
        let said = "f5".parse::<SenderName>().unwrap_err();
        assert!(said.contains("aws-nlb, dnsdist") && said.contains("or spectrum;"), "{said}");
    }
}
