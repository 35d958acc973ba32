//! `--sender`: what is known about a program or service that writes headers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

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
    Playit,
    Spectrum,
}

impl SenderName {
    const ALL: [Self; 8] = [
        Self::AwsNlb,
        Self::Dnsdist,
        Self::EdgeOne,
        Self::Frp,
        Self::Haproxy,
        Self::Nginx,
        Self::Playit,
        Self::Spectrum,
    ];

    /// As it is typed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AwsNlb => "aws-nlb",
            Self::Dnsdist => "dnsdist",
            Self::EdgeOne => "edgeone",
            Self::Frp => "frp",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Playit => "playit",
            Self::Spectrum => "spectrum",
        }
    }

    /// Where its datagrams have the header. `None`: it sends none, or that has not been measured.
    pub const fn dialect(self) -> Option<Dialect> {
        match self {
            Self::Dnsdist => Some(Dialect::Every),
            Self::Frp | Self::Nginx => Some(Dialect::First),
            Self::Playit | Self::Spectrum => Some(Dialect::Standalone),
            Self::EdgeOne => Some(Dialect::Spp),
            Self::AwsNlb | Self::Haproxy => None,
        }
    }

    /// After which silence a flow is forgotten, where that differs from the dialect's usual senders: just
    /// below its own time-out.
    pub(crate) const fn silence(self) -> Option<Duration> {
        match self {
            Self::Playit => Some(Duration::from_secs(59)),
            _ => None,
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
            Self::EdgeOne | Self::Nginx | Self::Playit | Self::Spectrum => "",
        }
    }

    /// What the name stands for, in options.
    pub(crate) fn sets(self, header: impl fmt::Display, dialect: Option<Dialect>) -> String {
        let versions = if self.versions() == Versions::V2 { "version 2 only" } else { "version 1 or 2" };
        let silence = self.silence().filter(|_| dialect.is_some());
        let silence = silence.map(|time| format!(", --close-after {}s", time.as_secs())).unwrap_or_default();
        let dialect = dialect.map(|dialect| format!(", --udp-dialect {dialect}")).unwrap_or_default();
        let health_checks = self.health_checks();
        format!("--sender {self} means --header {header} ({versions}){dialect}{silence}{health_checks}")
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
            if let Ok(address) = text.parse::<IpAddr>() {
                return format!("expected a program's name; a sender's address: --allow {address}");
            }
            let names = Self::ALL.map(Self::as_str);
            let [names @ .., last] = names;
            format!("expected {} or {last}; others need no name: leave it out", names.join(", "))
        })
    }
}

/// `--udp-dialect`: a dialect, or the name of a sender that writes it and needs nothing else.
pub(super) fn dialect(text: &str) -> Result<Dialect, ParseDialectError> {
    let text = text.to_ascii_lowercase();
    match text.as_str() {
        "udppp" => return Ok(Dialect::Every),
        "spectrum-simple" => return Ok(Dialect::Spp),
        _ => {}
    }
    let sender = text.parse().ok().filter(|sender: &SenderName| sender.silence().is_none());
    let sender = sender.and_then(SenderName::dialect);
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
        for typed in ["haproxy", "aws-nlb", "playit", ""] {
            assert!(dialect(typed).is_err(), "{typed}");
        }
    }

    #[test]
    fn each_name_is_read_as_it_is_written() {
        for sender in SenderName::ALL {
            assert_eq!(sender.to_string().parse(), Ok(sender));
        }
        let said = "f5".parse::<SenderName>().unwrap_err();
        assert!(said.contains("aws-nlb, dnsdist") && said.contains("or spectrum;"), "{said}");
        let said = "10.0.0.7".parse::<SenderName>().unwrap_err();
        assert!(said.ends_with("--allow 10.0.0.7"), "{said}");
    }
}
