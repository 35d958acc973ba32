//! The command line, and the plan that it makes.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use truepeer_testbed::Bed;

use crate::contestant::{self, Command, Contestant, NO_PROXY};
use crate::load::{Load, Scale};

/// Threads of a load or backend: more don't help fifty connections.
const THREADS_MAX: usize = 8;

const AFTER_HELP: &str = "\
Examples:
  bench                                   everything, a few minutes
  bench --only streaming,ping-pong --contestants nginx,truepeer --rounds 11
  bench --peer 'mmproxy-rs=/opt/mmproxy -l {listen} -4 {backend} -6 [::1]:{port} -p {protocol}'
  bench --write docs                      and write docs/benchmarks.md with its charts
";

/// Put the same loads on truepeer, on its peers and on no proxy at all, in turns, and compare.
#[derive(Debug, Parser)]
#[command(name = "bench", after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Seconds instead of minutes: checks that every number is produced, not what it is
    #[arg(long)]
    pub(crate) smoke: bool,
    /// Only these loads: streaming, ping-pong, connections, bulk-up, bulk-down, udp-64, udp-1400, idle
    #[arg(long, value_name = "LOAD", value_delimiter = ',')]
    only: Vec<Load>,
    /// Only these contestants (no-proxy always takes part): go-mmproxy, go-mmproxy-1 (GOMAXPROCS=1), haproxy, nginx,
    /// truepeer, truepeer-attach, truepeer-run, truepeer-notify, and those of --peer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contestants: Vec<String>,
    /// Another contestant by its command line; {listen}, {backend}, {port} and {protocol} are filled in; repeatable
    #[arg(long, value_name = "NAME=COMMAND")]
    peer: Vec<Command>,
    /// How often everything is measured [default: 5]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Length of a measurement in seconds [default: 1]
    #[arg(long, value_name = "SECONDS")]
    window: Option<f64>,
    /// What goes before it and is not counted, in seconds [default: 0.4]
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
    /// Connections, or UDP flows, at a time
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// Connections that carry bulk
    #[arg(long, value_name = "N", default_value_t = 4)]
    bulk_connections: usize,
    /// Idle sessions [default: 5000]
    #[arg(long, value_name = "N")]
    idle: Option<usize>,
    /// Threads of the load, and of the backend [default: one for each core, at most 8]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Congestion control [default: this machine's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// truepeer's binary [default: the one beside this]
    #[arg(long, value_name = "PATH")]
    truepeer: Option<PathBuf>,
    /// Write benchmarks.md and its charts into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) write: Option<PathBuf>,
}

/// What is measured, how often and how long.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) loads: Vec<Load>,
    pub(crate) contestants: Vec<Contestant>,
    /// Those that can't take part, each with the reason.
    pub(crate) absent: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) scale: Scale,
    pub(crate) congestion: Option<String>,
}

impl Args {
    /// The plan; a name that nobody has is an error.
    pub(crate) fn plan(&self, bed: &Bed) -> anyhow::Result<Plan> {
        let loads = if self.only.is_empty() { Load::ALL.to_vec() } else { self.only.clone() };
        let (contestants, absent) = self.contestants(bed)?;
        Ok(Plan {
            loads,
            contestants,
            absent,
            rounds: self.rounds.unwrap_or(if self.smoke { 1 } else { 5 }).max(1),
            scale: self.scale()?,
            congestion: self.congestion.clone(),
        })
    }

    fn scale(&self) -> anyhow::Result<Scale> {
        let cores = thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let seconds = |given: Option<f64>, smoke: f64, usual: f64| {
            let seconds = given.unwrap_or(if self.smoke { smoke } else { usual });
            Duration::try_from_secs_f64(seconds).with_context(|| format!("{seconds} seconds"))
        };
        Ok(Scale {
            warm_up: seconds(self.warm_up, 0.05, 0.4)?,
            window: seconds(self.window, 0.1, 1.0)?,
            threads: self.threads.unwrap_or(cores.min(THREADS_MAX)).max(1),
            connections: self.connections.max(1),
            bulk_connections: self.bulk_connections.max(1),
            in_flight: 32,
            idle: self.idle.unwrap_or(if self.smoke { 100 } else { 5000 }).max(1),
        })
    }

    fn contestants(&self, bed: &Bed) -> anyhow::Result<(Vec<Contestant>, Vec<String>)> {
        let mut all = contestant::standard(self.truepeer(bed)?);
        all.extend(self.peer.iter().cloned().map(Contestant::by_command));
        for name in &self.contestants {
            let known = all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
            anyhow::ensure!(
                all.iter().any(|one| one.name == *name),
                "no contestant {name}: there are {known}"
            );
        }
        let mut absent = Vec::new();
        all.retain(|one| {
            let wanted =
                self.contestants.is_empty() || one.name == NO_PROXY || self.contestants.contains(&one.name);
            let missing = one.missing().filter(|_| wanted);
            absent.extend(missing.iter().map(|reason| format!("{}: {reason}", one.label)));
            wanted && missing.is_none()
        });
        Ok((all, absent))
    }

    /// A copy of truepeer's binary: all rounds are to measure the same, even if somebody builds meanwhile. Where there is
    /// none, the place where it was looked for.
    fn truepeer(&self, bed: &Bed) -> anyhow::Result<PathBuf> {
        let original = match &self.truepeer {
            Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
            None => std::env::current_exe().context("the path of this program")?.with_file_name("truepeer"),
        };
        if !original.exists() {
            return Ok(original);
        }
        let copy = bed.dir().join("truepeer");
        fs::copy(&original, &copy).with_context(|| format!("a copy of {}", original.display()))?;
        Ok(copy)
    }
}
