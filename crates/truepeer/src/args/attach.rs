//! The options of `truepeer attach`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use truepeer_bpf::Rules;
use truepeer_policy::{Claims, HeaderRule, PrefixSet};

use super::values::{self, Allow};
use crate::config::{ConfigError, read_prefixes};

pub(super) const AFTER_HELP: &str = "\
What is attached goes on when this command ends: attach again to change its rules or to upgrade it (no connection
notices), detach to end it. Senders that are not allowed pass untouched, as if truepeer weren't there.

Examples:
  A load balancer at 10.0.0.7 in front of a web server that runs on this host:
    truepeer attach --port 443 --allow 10.0.0.7
  What it does, and its end without cutting anybody off:
    truepeer attach status
    truepeer attach detach
  A server that speaks first, some of whose clients come without a header:
    truepeer attach --port 22 --allow 10.0.0.7 --header optional";

/// Take PROXY headers off connections to a running server, in the kernel: no proxy, no restart, nothing per byte.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AttachArgs {
    #[command(subcommand)]
    pub(crate) action: Option<AttachAction>,
    /// Port that the server listens on; repeatable
    #[arg(long, value_name = "PORT[/tcp]", required = true)]
    port: Vec<Port>,
    /// Who sends headers: loopback, private, any, a prefix, or a file (beginning with / or .); repeatable [default: loopback]
    #[arg(long, value_name = "PREFIX|FILE")]
    allow: Vec<Allow>,
    /// Whether their connections begin with a header: require, or optional (whoever may send may then claim to be anybody; a
    /// server that speaks first is held back for a second)
    #[arg(long, value_name = "RULE", default_value = "require", value_parser = header)]
    header: HeaderRule,
    /// How long a sender may take for its header; looked at after 1, 3, 7, 15, 31 and 63 seconds
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::positive_duration)]
    header_timeout: Duration,
    /// The longest header taken
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = values::header_max)]
    header_max: usize,
    /// Loopback, unspecified, multicast, broadcast and reserved addresses that a header may claim all the same; repeatable
    #[arg(long, value_name = "PREFIX")]
    allow_claims: Vec<PrefixSet>,
    /// File of clients to refuse, a prefix a line, # for comments; repeatable
    #[arg(long, value_name = "FILE")]
    deny_clients: Vec<PathBuf>,
    /// Network device to attach to, or all: those that have an address; repeatable
    #[arg(long, value_name = "DEV|all", default_value = "all")]
    pub(crate) dev: Vec<String>,
    /// Show the client only to processes of this cgroup [default: all processes]
    #[arg(long, value_name = "PATH", conflicts_with = "unit")]
    pub(crate) cgroup: Option<PathBuf>,
    /// Show the client only to processes of this systemd unit
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
    /// Say what would be attached where, and don't
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// Which attachment is meant.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Network namespace, by its name or path [default: this one]
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) netns: Option<PathBuf>,
    /// Where on the BPF file system it is kept
    #[arg(long, value_name = "DIR", default_value = truepeer_bpf::DEFAULT_PINS)]
    pub(crate) pins: PathBuf,
}

/// What to do instead of attaching.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum AttachAction {
    /// Show connections, and refusals by reason, for each port
    Status {
        /// Print for machines
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Take no new connections; when the last one has ended, remove everything
    Detach {
        /// Remove it at once: translated connections break
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

impl AttachArgs {
    /// The rules, with files read.
    pub(crate) fn rules(&self) -> Result<Rules, ConfigError> {
        let senders = self.senders()?;
        if self.header == HeaderRule::Optional && senders.has_everybody() {
            return Err(ConfigError::OptionalForEverybody);
        }
        let mut claims = Claims::default();
        self.allow_claims.iter().for_each(|prefixes| claims.allow.extend(prefixes));
        for path in &self.deny_clients {
            claims.deny.extend(&read_prefixes("--deny-clients", path)?);
        }
        Ok(Rules {
            tcp_ports: self.port.iter().map(|port| port.0).collect::<BTreeSet<u16>>(),
            senders,
            header: self.header,
            claims,
            header_timeout: self.header_timeout,
            header_max: self.header_max,
        })
    }

    fn senders(&self) -> Result<PrefixSet, ConfigError> {
        if self.allow.is_empty() {
            return Ok(PrefixSet::loopback());
        }
        let mut senders = PrefixSet::new();
        for entry in &self.allow {
            match entry {
                Allow::Prefixes(prefixes) => senders.extend(prefixes),
                Allow::File(path) => senders.extend(&read_prefixes("--allow", path)?),
            }
        }
        Ok(senders)
    }
}

/// `443`, `443/tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Port(u16);

impl FromStr for Port {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix("/tcp").unwrap_or(text);
        match number.parse() {
            Ok(port) if port > 0 && !number.starts_with('+') => Ok(Self(port)),
            _ if text.ends_with("/udp") => Err("UDP is carried by truepeer proxy -p udp"),
            _ => Err("expected a port such as 443 or 443/tcp"),
        }
    }
}

fn header(text: &str) -> Result<HeaderRule, &'static str> {
    match text.parse() {
        Ok(rule @ (HeaderRule::Require | HeaderRule::Optional)) => Ok(rule),
        _ => {
            Err("expected require or optional; senders without a header are those that --allow does not list")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_with_a_protocol() {
        assert_eq!("443".parse(), Ok(Port(443)));
        assert_eq!("2222/tcp".parse(), Ok(Port(2222)));
        for text in ["", "0", "65536", "+1", "443/sctp", "https", "443/"] {
            assert!(text.parse::<Port>().is_err_and(|error| error.contains("expected a port")), "{text}");
        }
        assert!("53/udp".parse::<Port>().is_err_and(|error| error.contains("proxy -p udp")));
    }
}
