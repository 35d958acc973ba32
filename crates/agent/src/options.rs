//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::probe;
use crate::sender_limit::Entry;

/// Where metrics are served: on each node, to the cluster; or on this host alone.
const LISTEN_NODE: &str = "[::]:9464";
const LISTEN_HERE: &str = "127.0.0.1:9464";
/// Where probes are answered.
const PROBES: &str = "@truepeer-agent";

const KUBERNETES_HELP: &str = "\
Examples:
  In a DaemonSet (hostPID: true, NODE_NAME from spec.nodeName, the host's /sys/fs/cgroup, and /sys/fs/bpf/truepeer as /run/truepeer):
    truepeer-agent kubernetes --pins /run/truepeer
  Pods may name only these senders:
    truepeer-agent kubernetes --allow-senders 10.0.0.0/24
  A pod that sees its clients behind a load balancer at 10.0.0.7:
    kubectl annotate pod web truepeer.dev/ports=80 truepeer.dev/allow=10.0.0.7

Annotations of a pod (write them in the pod's template):
  truepeer.dev/ports        Ports of the server: \"80,443\", \"8000-8010\", \"53/udp\"
  truepeer.dev/allow        Who sends headers: addresses or prefixes: \"10.0.0.7,10.1.0.0/16\"
  truepeer.dev/header       \"optional\" for all of them, or \"10.0.0.1=optional\" for some [default: require]
  truepeer.dev/udp-dialect  \"every\", \"first\", \"standalone\" or \"spp\" [default: every]

With truepeer.dev/attached in readinessGates, no service sends connections to the pod before truepeer is attached. The pod's condition of that
name and its events say what was attached, or why not. The attachments stay when the agent ends; it adopts them when it starts again.";

const DOCKER_HELP: &str = "\
Examples:
  Containers of Docker, or of Podman, whichever has a socket:
    truepeer-agent docker
  A container that sees its clients behind a load balancer at 10.0.0.7:
    docker run --label truepeer.dev/ports=80 --label truepeer.dev/allow=10.0.0.7 nginx

Labels of a container:
  truepeer.dev/ports        Ports of the server in the container: \"80,443\", \"8000-8010\", \"53/udp\"
  truepeer.dev/allow        Who sends headers: addresses or prefixes: \"10.0.0.7,10.1.0.0/16\"
  truepeer.dev/header       \"optional\" for all of them, or \"10.0.0.1=optional\" for some [default: require]
  truepeer.dev/udp-dialect  \"every\", \"first\", \"standalone\" or \"spp\" [default: every]

A container is attached when it starts, and at each restart. The attachments stay when the agent ends.";

/// Attaches truepeer to the pods or containers of this machine that ask for it by an annotation or a label
#[derive(Debug, Parser)]
#[command(name = "truepeer-agent", version, max_term_width = 120)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The pods of this Kubernetes node, by their annotations
    #[command(after_long_help = KUBERNETES_HELP, after_help = "More, with examples: truepeer-agent kubernetes --help")]
    Kubernetes(Kubernetes),
    /// Before the DaemonSet is deleted: its agents detach all pods (kubernetes --leave)
    Retire(Retire),
    /// For the kubelet's probes: whether the agent in this network namespace is alive, or ready
    Probe(Probe),
    /// The containers of Docker or Podman, by their labels
    #[command(after_long_help = DOCKER_HELP, after_help = "More, with examples: truepeer-agent docker --help")]
    Docker(Docker),
}

#[derive(Debug, Args)]
pub(crate) struct Kubernetes {
    /// This node's name
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node: String,

    /// How many pods may be attached at a time
    #[arg(long, value_name = "COUNT", default_value_t = 250)]
    pub(crate) max_pods: usize,

    /// Address of /metrics, /healthz and /readyz; none: they are not served
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN_NODE)]
    pub(crate) listen: Listen,

    /// Socket of the kubelet's probes (truepeer-agent probe): a name in the pod's network namespace
    #[arg(long, value_name = "@NAME", default_value = PROBES)]
    pub(crate) probes: probe::Name,

    /// Detach all pods and remove the condition, instead of attaching; /readyz says when nothing is left.
    /// Services have 5 s to leave a pod out, then open connections 20 s
    #[arg(long)]
    pub(crate) leave: bool,

    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct Retire {
    /// Namespace of the DaemonSet
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: String,

    /// Name of the DaemonSet
    #[arg(long, value_name = "NAME")]
    pub(crate) daemonset: String,

    /// How long all nodes together may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Probe {
    #[arg(value_enum)]
    pub(crate) question: probe::Question,

    /// Socket of the probes
    #[arg(long, value_name = "@NAME", default_value = PROBES)]
    pub(crate) probes: probe::Name,
}

#[derive(Debug, Args)]
pub(crate) struct Docker {
    /// The engine's socket [default: /run/docker.sock, or /run/podman/podman.sock where that does not exist]
    #[arg(long, env = "DOCKER_HOST", value_name = "PATH")]
    pub(crate) socket: Option<String>,

    /// How many containers may be attached at a time
    #[arg(long, value_name = "COUNT", default_value_t = 250)]
    pub(crate) max_containers: usize,

    /// Address of /metrics, /healthz and /readyz; none: they are not served
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN_HERE)]
    pub(crate) listen: Listen,

    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Which senders may be allowed by an annotation or a label: private, any, a prefix, or a file of
    /// prefixes (beginning with / or .); repeatable [default: any]
    #[arg(long, value_name = "PREFIX|FILE")]
    pub(crate) allow_senders: Vec<Entry>,

    /// File with a token that whoever asks for /metrics must have (Authorization: Bearer TOKEN)
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_token: Option<PathBuf>,

    /// The program truepeer [default: beside this program, else as found in PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) truepeer: Option<PathBuf>,

    /// Directory of the pins on a BPF file system [default: truepeer's own]
    #[arg(long, value_name = "DIR")]
    pub(crate) pins: Option<PathBuf>,

    /// Form of the log on standard error
    #[arg(long, value_name = "text|json", default_value = "text", hide_possible_values = true)]
    pub(crate) log_format: LogFormat,

    /// Least important messages of the log: error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: tracing::Level,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse();
    number.map(Duration::from_secs).map_err(|_| "expected seconds, such as 60 or 60s".to_owned())
}

/// Where something is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) Option<SocketAddr>);

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        let port_alone = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
        let address = match port_alone {
            Ok(port) => (std::net::Ipv6Addr::UNSPECIFIED, port).into(),
            Err(_) => text.parse().map_err(
                |_| "expected an address and a port, such as 127.0.0.1:9464 or [::]:9464, or none",
            )?,
        };
        Ok(Self(Some(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        let Command::Kubernetes(options) = parsed("truepeer-agent kubernetes --node a").unwrap().command
        else {
            panic!("another command");
        };
        assert_eq!((options.max_pods, options.listen), (250, LISTEN_NODE.parse().unwrap()));
        assert!(options.common.allow_senders.is_empty() && options.common.truepeer.is_none());
        let Command::Docker(options) = parsed("truepeer-agent docker --listen :9000").unwrap().command else {
            panic!("another command");
        };
        assert_eq!(options.listen, Listen("[::]:9000".parse().ok()));
        let Command::Docker(options) = parsed("truepeer-agent docker --listen none").unwrap().command else {
            panic!("another command");
        };
        assert_eq!(options.listen, Listen(None));
    }

    #[test]
    fn mistakes_are_quoted_with_what_was_expected() {
        for (line, expected) in [
            (
                "docker --listen here",
                "invalid value 'here' for '--listen <ADDRESS>': expected an address and a port, such as 127.0.0.1:9464 or [::]:9464, or none",
            ),
            (
                "docker --allow-senders lan",
                "invalid value 'lan' for '--allow-senders <PREFIX|FILE>': expected private, any, an address",
            ),
            ("docker --max-pods 3", "unexpected argument '--max-pods'"),
        ] {
            let said = parsed(&format!("truepeer-agent {line}")).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn examples_in_the_help_are_command_lines() {
        for line in [KUBERNETES_HELP, DOCKER_HELP].iter().flat_map(|text| text.lines()) {
            let Some(line) = line.trim().strip_prefix("truepeer-agent ") else { continue };
            let with_node = line.replacen("kubernetes", "kubernetes --node a", 1);
            parsed(&format!("truepeer-agent {with_node}")).unwrap();
        }
    }
}
