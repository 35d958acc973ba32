//! The options of `truepeer run` and `truepeer connect`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use truepeer_handover::{Destination, Listeners, Sending, Settings};
use truepeer_policy::{Destinations, Dialect, HeaderTimes};
use truepeer_proto::{Limits, Version, Versions};

use super::senders::SenderArgs;
use super::values::{self, Header};
use crate::plan::{ConfigError, ListenAddr};

pub(super) const RUN_HELP: &str = "\
What comes after -- is started in this process's place: it keeps its process number, its terminal and its signals (by
notify it is a child: signals are passed on, its status is ours). Neither root nor a capability is needed.

How: preload (a library between the program and libc's accept()), or notify (a supervisor that the kernel asks, for static
programs such as Go's, and musl's). auto takes preload wherever the program would load it.

Examples:
  A web server behind a load balancer at 10.0.0.7:
    truepeer run --allow 10.0.0.7 -- python3 -m http.server 8000
  Only its public port, not its admin port:
    truepeer run --port 443 --allow 10.0.0.0/8 -- nginx -g 'daemon off;'
  HAProxy with send-proxy-v2 on this machine:
    truepeer run -- redis-server --port 6379";

pub(super) const CONNECT_HELP: &str = "\
Examples:
  See what a server makes of a client:
    truepeer connect --from 203.0.113.7:5000 -- nc 127.0.0.1 9090
  Only connections to one network and port:
    truepeer connect --header v1 --to 10.0.0.0/8:443 -- curl https://10.0.0.1/
  A query to a DNS server that takes headers from here:
    truepeer connect --from 203.0.113.7:5000 --udp-dialect every --to 127.0.0.1/32:53 -- dig @127.0.0.1 example.org";

/// Start a program that sees the true peer: its accept() and getpeername() name the client, PROXY headers are taken off.
/// No proxy, nothing per byte.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    senders: SenderArgs,
    /// Whether connections begin with a PROXY header: require, forbid, or optional (whoever may connect may then claim to
    /// be anybody); PREFIX=RULE for some senders, repeatable [default: require]
    #[arg(long, value_name = "[PREFIX=]RULE")]
    header: Vec<Header>,
    /// Versions of the PROXY protocol that are taken: 1, 2 or 1,2 [default: 1,2]
    #[arg(long, value_name = "LIST", value_parser = versions)]
    versions: Option<Versions>,
    /// How long a sender may take for its header [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration)]
    header_timeout: Option<Duration>,
    /// How long a sender with --header optional may be silent before it is served as itself [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration)]
    header_wait: Option<Duration>,
    /// Only listeners on this port; repeatable [default: all listeners]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Only listeners on this address and port; repeatable
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<ListenAddr>,
    /// What getsockname() answers: the socket's own address, or the destination that the header names
    #[arg(long, value_name = "socket|header", default_value = "socket", value_parser = destination)]
    destination: Destination,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

/// Start a program whose connections begin with a PROXY header.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectArgs {
    /// The client to name [default: the connection's own address]
    #[arg(long, value_name = "ADDR:PORT", value_parser = client)]
    from: Option<SocketAddr>,
    /// Version of the PROXY protocol for TCP
    #[arg(long, value_name = "v1|v2", default_value = "v2", value_parser = version)]
    header: Version,
    /// Only connections there; repeatable [default: all TCP connections]
    #[arg(long, value_name = "PREFIX[:PORTS]")]
    to: Vec<Destinations>,
    /// Datagrams, too, with a header where the receiver expects it: every, first, standalone or spp (off the answers as
    /// well); DNS servers that the program asks get them, too, so say --to [default: UDP is left alone]
    #[arg(long, value_name = "DIALECT")]
    udp_dialect: Option<Dialect>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

/// What both have in common.
#[derive(Debug, Clone, Args)]
pub(crate) struct HowArgs {
    /// How to stand between the program and the kernel
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) via: Via,
    /// Say on standard error what is done with each connection
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Only write the library to this directory, as libtruepeer.so and under the names of libproxyproto, for LD_PRELOAD by hand
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub(crate) unpack: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "unpack", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// A mechanism, or the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// As the program needs it.
    Auto,
    /// A library that the program's dynamic linker loads.
    Preload,
    /// A supervisor that the kernel asks (seccomp user notification).
    Notify,
}

impl RunArgs {
    /// What is to be done with connections, with files read.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let default = Settings::default();
        let mut settings = Settings {
            allow: self.senders.senders()?,
            claims: self.senders.claims()?,
            limits: Limits {
                max_len: self.senders.header_max(),
                versions: self.versions.unwrap_or(default.limits.versions),
            },
            header_times: HeaderTimes {
                timeout: self.header_timeout.unwrap_or(default.header_times.timeout),
                wait: self.header_wait.unwrap_or(default.header_times.wait),
            },
            listeners: self.listeners()?,
            destination: self.destination,
            verbose: self.how.verbose,
            ..default
        };
        for header in &self.header {
            match header {
                Header::All(rule) => settings.header = *rule,
                Header::Some(some) => settings.exceptions.push((some.senders.clone(), some.rule)),
            }
        }
        settings.senders().check()?;
        Ok(settings)
    }

    /// What is allowed, and perhaps not meant.
    pub(crate) fn warnings(&self, settings: &Settings) -> Vec<String> {
        let mut warnings = self.senders.warnings(&settings.allow);
        let of_headers = [
            ("--versions", self.versions.is_some()),
            ("--header-timeout", self.header_timeout.is_some()),
            ("--header-wait", self.header_wait.is_some()),
            ("--destination header", self.destination == Destination::Header),
        ];
        let said = of_headers.into_iter().filter(|(_, is_said)| *is_said).map(|(option, _)| option);
        if settings.takes_no_header() {
            let all = said.chain(self.senders.said_of_headers());
            warnings.extend(all.map(|option| {
                format!("{option} has no effect: no sender's header is taken (--header forbid)")
            }));
        }
        warnings
    }

    fn listeners(&self) -> Result<Listeners, ConfigError> {
        let addresses = self.listen.iter().map(ListenAddr::resolve).collect::<Result<_, _>>()?;
        Ok(Listeners { ports: self.port.clone(), addresses })
    }
}

impl ConnectArgs {
    /// What is to be said to whom.
    pub(crate) fn sending(&self) -> Sending {
        let mut to = Destinations::default();
        self.to.iter().for_each(|entry| to.extend(entry));
        let datagrams = self.udp_dialect;
        Sending { from: self.from, version: self.header, to, datagrams, verbose: self.how.verbose }
    }
}

fn versions(text: &str) -> Result<Versions, &'static str> {
    match text {
        "1" => Ok(Versions::V1),
        "2" => Ok(Versions::V2),
        "1,2" | "2,1" => Ok(Versions::BOTH),
        _ => Err("expected 1, 2 or 1,2"),
    }
}

fn client(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected an address and a port, 203.0.113.7:5000 or [2001:db8::7]:5000")
}

fn version(text: &str) -> Result<Version, &'static str> {
    match text {
        "v1" | "1" => Ok(Version::V1),
        "v2" | "2" => Ok(Version::V2),
        _ => Err("expected v1 or v2"),
    }
}

fn destination(text: &str) -> Result<Destination, &'static str> {
    match text {
        "socket" => Ok(Destination::Socket),
        "header" => Ok(Destination::Header),
        _ => Err("expected socket or header"),
    }
}
