//! `truepeer attach` as it is written.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use truepeer_handover::Destination;
use truepeer_policy::Dialect;

use super::groups::{PrintSpec, SendersSpec, WaitSpec};
use super::port::AttachPorts;
use super::{run, sender, values};

/// Remove PROXY headers from connections to a running server, in the kernel: no proxy, no restart, no cost
/// per byte
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AttachArgs {
    #[command(subcommand)]
    pub action: Option<AttachAction>,
    #[command(flatten)]
    pub spec: AttachSpec,
}

/// What to attach, and where.
#[derive(Debug, Clone, Args)]
pub struct AttachSpec {
    #[arg(long, required = true)]
    pub port: Vec<AttachPorts>,
    #[arg(long, value_parser = sender::dialect)]
    pub(crate) udp_dialect: Option<Dialect>,
    #[command(flatten)]
    pub(crate) senders: SendersSpec,
    #[command(flatten)]
    pub(crate) wait: WaitSpec,
    #[arg(long, value_parser = unshowable)]
    pub(crate) unshowable: Option<Unshowable>,
    #[arg(long, value_parser = run::destination)]
    pub(crate) destination: Option<Destination>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) close_after: Option<Duration>,
    #[arg(long, value_parser = values::count::<NonZeroU32>)]
    pub(crate) max_flows: Option<NonZeroU32>,
    #[arg(long, value_parser = values::count::<NonZeroU32>)]
    pub(crate) max_udp_flows: Option<NonZeroU32>,
    #[arg(long, value_parser = device)]
    pub dev: Vec<String>,
    #[arg(long, conflicts_with = "unit")]
    pub cgroup: Option<PathBuf>,
    #[arg(long)]
    pub unit: Option<String>,
    #[arg(long)]
    pub replace: bool,
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub(crate) print: PrintSpec,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// What becomes of a client whose family the server's socket can't show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unshowable {
    /// The server is shown the sender.
    ShowSender,
    Refuse,
}

/// Attach to a container before its program starts, as a createRuntime hook of podman and CRI-O: reads the
/// container's state on stdin, and its annotations say what to attach
#[derive(Debug, Clone, Args)]
pub struct OciHookArgs {
    #[arg(long)]
    pub pins: Option<PathBuf>,
}

/// Identifies the attachment.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    #[arg(long)]
    pub(crate) netns: Option<PathBuf>,
    #[arg(long, conflicts_with = "netns", value_parser = values::count::<NonZeroU32>)]
    pub(crate) pid: Option<NonZeroU32>,
    #[arg(long, conflicts_with_all = ["netns", "pid"])]
    pub(crate) container: Option<String>,
    #[arg(long, requires = "container", value_parser = engine)]
    pub(crate) engine: Option<Engine>,
    #[arg(long)]
    pub netns_inode: Option<u64>,
    #[arg(long)]
    pub pins: Option<PathBuf>,
}

/// Whose network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AttachTarget {
    /// This process's.
    Here,
    /// By name, path or number of a process.
    Netns(PathBuf),
    /// A process's.
    Process(u32),
    /// A container's.
    Container { name: String, engine: Option<Engine> },
}

/// A container engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Engine {
    Docker,
    Podman,
    Containerd,
}

impl Engine {
    pub const ALL: [Self; 3] = [Self::Docker, Self::Podman, Self::Containerd];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
        }
    }
}

impl PlaceArgs {
    /// Where to attach.
    pub fn target(&self) -> AttachTarget {
        match (&self.netns, self.pid, &self.container) {
            (Some(netns), ..) => AttachTarget::Netns(netns.clone()),
            (_, Some(process), _) => AttachTarget::Process(process.get()),
            (.., Some(name)) => AttachTarget::Container { name: name.clone(), engine: self.engine },
            _ => AttachTarget::Here,
        }
    }
}

/// Empty: this network namespace.
impl fmt::Display for AttachTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => Ok(()),
            Self::Netns(name) => write!(out, "{}", name.display()),
            Self::Process(process) => write!(out, "process {process}"),
            Self::Container { name, .. } => write!(out, "container {name}"),
        }
    }
}

/// The action instead of attaching.
#[derive(Debug, Clone, Subcommand)]
pub enum AttachAction {
    /// Attach these ports, too: with rules of their own, beside what is attached in this network namespace
    Add {
        #[command(flatten)]
        spec: Box<AttachSpec>,
    },
    /// Take ports out: their new connections pass unchecked, with their header (fail-open), and open ones
    /// continue. The last port detaches
    Remove {
        /// The words that attached may be given again: only the ports and the place count
        #[command(flatten)]
        spec: Box<AttachSpec>,
        #[arg(long)]
        now: bool,
    },
    /// Show connections, and refusals by reason, for each port
    Status {
        #[arg(long, conflicts_with_all = ["netns", "pid", "container"])]
        all: bool,
        #[arg(long)]
        follow: bool,
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Remove what network namespaces that no longer exist have left (every attach and detach does it, too)
    Sweep {
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Stop checking new connections (they pass with their header: fail-open), and remove everything when the
    /// last open one has ended
    Detach {
        #[arg(long, conflicts_with_all = ["netns", "pid", "container"])]
        all: bool,
        #[arg(long)]
        now: bool,
        #[arg(long, conflicts_with = "now")]
        refuse_new: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

fn engine(text: &str) -> Result<Engine, &'static str> {
    let named = Engine::ALL.into_iter().find(|engine| engine.as_str() == text);
    named.ok_or("expected docker, podman or containerd")
}

fn unshowable(text: &str) -> Result<Unshowable, &'static str> {
    match text {
        "show-sender" => Ok(Unshowable::ShowSender),
        "refuse" => Ok(Unshowable::Refuse),
        _ => Err("expected show-sender or refuse"),
    }
}

/// A device's name, or all.
fn device(text: &str) -> Result<String, &'static str> {
    let is_name = !text.is_empty() && !text.contains([',', ' ', '/']);
    if is_name { Ok(text.to_owned()) } else { Err("expected the name of a device, such as eth0, or all") }
}
