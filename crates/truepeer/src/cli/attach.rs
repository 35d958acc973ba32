//! The options of `truepeer attach`.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use truepeer_bpf::{Gate, Rules, UdpDialect};
use truepeer_policy::{HeaderRule, Senders};

use super::senders::SenderArgs;
use super::values;
use crate::plan::ConfigError;

pub(super) const AFTER_HELP: &str = "\
What is attached goes on when this command ends: attach again to change its rules or to upgrade it (no connection
notices), detach to end it. Senders that are not allowed pass untouched, as if truepeer weren't there; only a client whose
datagrams came through an allowed one is answered through that until --close-after, even if it comes by itself meanwhile.

Examples:
  A load balancer at 10.0.0.7 in front of a web server that runs on this host:
    truepeer attach --port 443 --allow 10.0.0.7
  What it does, and its end without cutting anybody off:
    truepeer attach status
    truepeer attach detach
  A DNS server behind dnsdist, and one whose senders send to another port than it is bound to:
    truepeer attach --port 53/udp --allow 10.0.0.7
    truepeer attach --port 53:5353/udp --allow 10.0.0.7
  A server that speaks first, some of whose clients come without a header:
    truepeer attach --port 22 --allow 10.0.0.7 --header optional";

const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_AFTER: Duration = Duration::from_secs(60);

/// Take PROXY headers off connections to a running server, in the kernel: no proxy, no restart, nothing per byte.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AttachArgs {
    #[command(subcommand)]
    pub(crate) action: Option<AttachAction>,
    /// Port that the server listens on, tcp if not said otherwise; FROM:PORT/udp for datagrams that are sent to another one;
    /// repeatable
    #[arg(long, value_name = "[FROM:]PORT[/tcp|/udp]", required = true)]
    port: Vec<Port>,
    /// Where UDP headers are: every (v2 in each datagram) or spp (Simple Proxy Protocol, in answers too) [default: every]
    #[arg(long, value_name = "DIALECT", value_parser = udp_dialect)]
    udp_dialect: Option<UdpDialect>,
    #[command(flatten)]
    senders: SenderArgs,
    /// Whether their connections and datagrams begin with a header: require, or optional (whoever may send may then claim to be
    /// anybody; a server that speaks first is held back for a second)
    #[arg(long, value_name = "RULE", default_value = "require", value_parser = header)]
    header: HeaderRule,
    /// TCP: how long a sender may take for its header; looked at after 1, 3, 7, 15, 31 and 63 seconds [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration)]
    header_timeout: Option<Duration>,
    /// UDP: how long a client is answered through its sender after its last datagram from there; to a second [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration)]
    close_after: Option<Duration>,
    /// TCP: how many connections may be open at a time, more are refused; holds until everything is detached
    #[arg(long, value_name = "COUNT", default_value_t = truepeer_bpf::MAX_FLOWS)]
    max_flows: NonZeroU32,
    /// UDP: how many flows are remembered, 192 bytes each; holds until everything is detached
    #[arg(long, value_name = "COUNT", default_value_t = truepeer_bpf::MAX_UDP_FLOWS)]
    max_udp_flows: NonZeroU32,
    /// Network device to attach to, or all: those that have an address; repeatable
    #[arg(long, value_name = "DEV|all", default_value = "all")]
    pub(crate) dev: Vec<String>,
    /// TCP: show the client only to processes of this cgroup [default: all processes]
    #[arg(long, value_name = "PATH", conflicts_with = "unit")]
    pub(crate) cgroup: Option<PathBuf>,
    /// TCP: show the client only to processes of this systemd unit
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
    /// Judge no new connections (they pass with their header: it fails open); when the last old one has ended, remove everything
    Detach {
        /// Remove it at once: connections whose numbers are translated are reset, the others lose their client's name
        #[arg(long)]
        now: bool,
        /// While it waits, refuse new TCP connections from senders that must send a header
        #[arg(long, conflicts_with = "now")]
        refuse_new: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

impl AttachArgs {
    /// The rules, with files read.
    pub(crate) fn rules(&self) -> Result<Rules, ConfigError> {
        let senders = self.senders.senders()?;
        Senders::new(senders.clone(), self.header).check()?;
        let dialect = self.udp_dialect.unwrap_or(UdpDialect::Every);
        Ok(Rules {
            tcp_ports: self.port.iter().filter_map(|port| port.tcp()).collect(),
            udp_ports: self.port.iter().filter_map(|port| port.udp(dialect)).collect(),
            senders,
            header: self.header,
            claims: self.senders.claims()?,
            own_addresses: BTreeSet::new(),
            header_timeout: self.header_timeout.unwrap_or(HEADER_TIMEOUT),
            header_max: self.senders.header_max(),
            udp_silence: self.close_after.unwrap_or(CLOSE_AFTER),
            max_flows: self.max_flows,
            max_udp_flows: self.max_udp_flows,
        })
    }

    /// What is allowed, and perhaps not meant; and what was said in vain.
    pub(crate) fn warnings(&self, rules: &Rules) -> Vec<String> {
        let mut warnings = self.senders.warnings(&rules.senders);
        if self.header == HeaderRule::Optional && !rules.udp_ports.is_empty() {
            warnings.push(
                "--header optional: a datagram without a header is taken for its sender's own; through a sender that \
                 passes datagrams on as they are, everybody may claim to be anybody"
                    .to_owned(),
            );
        }
        let of_tcp = [
            ("--header-timeout", self.header_timeout.is_some()),
            ("--cgroup", self.cgroup.is_some()),
            ("--unit", self.unit.is_some()),
        ];
        let of_udp =
            [("--udp-dialect", self.udp_dialect.is_some()), ("--close-after", self.close_after.is_some())];
        warnings.extend(said_in_vain(&of_tcp, "TCP", rules.tcp_ports.is_empty()));
        warnings.extend(said_in_vain(&of_udp, "UDP", rules.udp_ports.is_empty()));
        warnings
    }
}

/// Options, whether they were given, and whether there is nothing that they are for.
fn said_in_vain(options: &[(&str, bool)], protocol: &str, is_absent: bool) -> Vec<String> {
    let said = options.iter().filter(|(_, is_given)| is_absent && *is_given);
    said.map(|(option, _)| format!("{option} has no effect: no {protocol} port is named")).collect()
}

/// `443`, `443/tcp`, `53/udp`, `53:5353/udp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Tcp(u16),
    Udp { from: u16, backend: u16 },
}

impl Port {
    fn tcp(self) -> Option<u16> {
        match self {
            Self::Tcp(port) => Some(port),
            Self::Udp { .. } => None,
        }
    }

    fn udp(self, dialect: UdpDialect) -> Option<(u16, Gate)> {
        match self {
            Self::Tcp(_) => None,
            Self::Udp { from, backend } => Some((from, Gate { backend_port: backend, dialect })),
        }
    }
}

impl FromStr for Port {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a port such as 443, 443/tcp or 53/udp";
        let (numbers, is_udp) = match text.strip_suffix("/udp") {
            Some(numbers) => (numbers, true),
            None => (text.strip_suffix("/tcp").unwrap_or(text), false),
        };
        let (from, backend) = numbers.split_once([':', '→']).unwrap_or((numbers, numbers));
        let (from, backend) = (number(from).ok_or(EXPECTED)?, number(backend).ok_or(EXPECTED)?);
        match is_udp {
            true => Ok(Self::Udp { from, backend }),
            false if from == backend => Ok(Self::Tcp(from)),
            false => Err("only UDP ports can be mapped: FROM:PORT/udp"),
        }
    }
}

fn number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0 && !text.starts_with('+'))
}

fn udp_dialect(text: &str) -> Result<UdpDialect, &'static str> {
    match text {
        "every" => Ok(UdpDialect::Every),
        "spp" => Ok(UdpDialect::Spp),
        "first" | "standalone" => {
            Err("expected every or spp; first and standalone are carried by truepeer proxy -p udp")
        }
        _ => Err("expected every or spp"),
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
        assert_eq!("443".parse(), Ok(Port::Tcp(443)));
        assert_eq!("2222/tcp".parse(), Ok(Port::Tcp(2222)));
        assert_eq!("53/udp".parse(), Ok(Port::Udp { from: 53, backend: 53 }));
        for text in ["53:5353/udp", "53→5353/udp"] {
            assert_eq!(text.parse(), Ok(Port::Udp { from: 53, backend: 5353 }));
        }
        for text in ["", "0", "65536", "+1", "443/sctp", "https", "443/", ":53/udp", "53:/udp", "1:2:3/udp"] {
            assert!(text.parse::<Port>().is_err_and(|error| error.contains("expected a port")), "{text}");
        }
        assert!("80:8080".parse::<Port>().is_err_and(|error| error.contains("only UDP")));
    }
}
