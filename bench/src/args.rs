//! The command line, and the plan made from it.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use truepeer_testbed::Bed;

use crate::backend;
use crate::contestant::{self, Command, Common, Contestant};
use crate::credentials::{Credentials, KeyKind};
use crate::pin::Pin;
use crate::place::Place;
use crate::suites::{Load, OriginKind, Scale, Selection, Suite};

/// The most threads of a load or backend: more don't help with fifty connections.
const THREADS_MAX: usize = 8;

const AFTER_HELP: &str = "\
Examples:
  bench                                   everything, a few minutes
  bench --only streaming,ping-pong --contestants nginx,truepeer --rounds 11
  bench --peer 'mmproxy-rs=/opt/mmproxy -l {listen} -4 {backend} -6 [::1]:{port} -p {protocol}'
  bench --only https --pin                HTTPS alone, the contestant on a core of its own
  bench --peer 'old=/opt/old https -l {listen} --cert {cert} --key {key} --origin https://{backend} --origin-insecure'
  bench --write docs                      and write docs/benchmarks.md and docs/benchmarks-https.md with their charts
";

/// Compares truepeer, its peers and no proxy under the same loads, in turns
#[derive(Debug, Parser)]
#[command(name = "bench", after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Seconds instead of minutes: checks that every number is produced, not its value
    #[arg(long)]
    pub(crate) smoke: bool,
    /// Only these loads: proxy (streaming, ping-pong, ping-pong-rate, connections, bulk-up, bulk-down,
    /// udp-64, udp-1400, idle), hosts (hosts-ping-pong, hosts-ping-pong-rate, hosts-connections,
    /// hosts-bulk-up, hosts-bulk-down: each party on a host of its own), https (https-10, https-64,
    /// https-rate, https-h2-1, https-h2-10, https-h2-50, handshakes, https-idle), stacks (https-stacks: on the kernel's TCP and on VPP's)
    #[arg(long, value_name = "LOAD", value_delimiter = ',')]
    only: Vec<Selection>,
    /// Only these contestants (no-proxy always takes part): go-mmproxy, go-mmproxy-1 (GOMAXPROCS=1),
    /// haproxy, nginx, truepeer, truepeer-relay (--splice off), truepeer-attach, truepeer-run,
    /// truepeer-notify; nginx-https, haproxy-https, hitch-haproxy, hitch-nginx, truepeer-https,
    /// truepeer-https-h2; no-proxy-vpp, nginx-kernel, nginx-vpp, truepeer-kernel, truepeer-vpp; and those of
    /// --peer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contestants: Vec<String>,
    /// Another contestant by its command line, in which {listen}, {backend}, {port} and {protocol} are
    /// replaced, for HTTPS also {cert}, {key} and {pem}; repeatable
    #[arg(long, value_name = "NAME=COMMAND")]
    peer: Vec<Command>,
    /// Another HAProxy beside the installed one: other-haproxy, other-haproxy-https, other-haproxy-https-h2
    /// (HTTP/2 with the origin)
    #[arg(long, value_name = "PATH")]
    other_haproxy: Option<PathBuf>,
    /// Another NGINX beside the installed one, with its stream module beside it or in ../lib/nginx/modules:
    /// other-nginx, other-nginx-https
    #[arg(long, value_name = "PATH")]
    other_nginx: Option<PathBuf>,
    /// How often everything is measured [default: 5]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Length of a measurement in seconds [default: 1]
    #[arg(long, value_name = "SECONDS")]
    window: Option<f64>,
    /// Length of the warm-up, which is not counted, in seconds [default: 0.4]
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
    /// Connections, or UDP flows, at a time
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// Connections with bulk data
    #[arg(long, value_name = "N", default_value_t = 4)]
    bulk_connections: usize,
    /// Idle sessions [default: 5000]
    #[arg(long, value_name = "N")]
    idle: Option<usize>,
    /// The constant rate of ping-pong-rate, in requests a second; every contestant must be able to do more
    #[arg(long, value_name = "N", default_value_t = 10_000.0)]
    ping_pong_rate: f64,
    /// The constant rate of https-rate, as a share of NGINX's rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    rate_share: f64,
    /// The origin of the HTTPS loads
    #[arg(long, value_name = "KIND", value_enum, default_value_t = OriginKind::Nginx)]
    origin: OriginKind,
    /// Keys of the certificates
    #[arg(long, value_name = "KIND", value_enum, default_value_t = KeyKind::Rsa2048)]
    keys: KeyKind,
    /// Give the contestant one core, and load and backend the others
    #[arg(long)]
    pin: bool,
    /// Threads of the load, and of the backend [default: one for each of their cores, at most 8]
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

/// What is measured, how often and for how long.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) loads: Vec<Load>,
    pub(crate) contestants: Vec<Contestant>,
    /// Contestants that can't take part, each with the reason.
    pub(crate) absent: Vec<String>,
    pub(crate) rounds: usize,
    /// How often a failed measurement is tried. Only a check that all numbers are produced may try again:
    /// the machine is then busy with other work and may have stalled for seconds.
    pub(crate) attempts: usize,
    pub(crate) scale: Scale,
    pub(crate) congestion: Option<String>,
    pub(crate) pin: Pin,
    pub(crate) keys: KeyKind,
    pub(crate) origin: OriginKind,
    /// The keys and certificates of the HTTPS loads, if there are any.
    pub(crate) credentials: Option<Credentials>,
}

impl Plan {
    /// The part that all cells share.
    pub(crate) fn common<'a>(&'a self, place: &'a Place) -> Common<'a> {
        Common {
            place,
            origin: self.origin,
            threads: self.scale.threads,
            credentials: self.credentials.as_ref(),
            pin: &self.pin,
        }
    }

    /// The selected loads of a suite.
    pub(crate) fn loads_of(&self, suite: Suite) -> impl Iterator<Item = Load> + Clone + '_ {
        self.loads.iter().copied().filter(move |load| load.suite() == suite)
    }

    /// The suites with selected loads.
    pub(crate) fn suites(&self) -> impl Iterator<Item = Suite> + '_ {
        Suite::ALL.into_iter().filter(|suite| self.loads_of(*suite).next().is_some())
    }

    /// The contestants of a suite, by index.
    pub(crate) fn contestants_of(&self, suite: Suite) -> Vec<usize> {
        let carries = |who: &usize| self.loads_of(suite).any(|load| self.contestants[*who].carries(load));
        (0..self.contestants.len()).filter(carries).collect()
    }
}

impl Args {
    /// The plan. An unknown name is an error.
    pub(crate) fn plan(&self, bed: &Bed) -> anyhow::Result<Plan> {
        let mut loads = if self.only.is_empty() {
            Load::ALL.to_vec()
        } else {
            self.only.iter().flat_map(|selection| selection.0.clone()).collect()
        };
        let (contestants, mut absent) = self.contestants(bed, &loads)?;
        if let Some(reason) = backend::missing_origin() {
            let without = |load: &Load| matches!(load.suite(), Suite::Https | Suite::Stacks);
            absent.extend(
                loads.iter().filter(|load| without(load)).map(|load| format!("{}: {reason}", load.name())),
            );
            loads.retain(|load| !without(load));
        }
        let pin = if self.pin { Pin::make()? } else { Pin::default() };
        let wants_tls = loads.iter().any(|load| load.suite() == Suite::Https);
        let credentials = wants_tls.then(|| Credentials::make(bed.dir(), self.keys)).transpose()?;
        Ok(Plan {
            loads,
            contestants,
            absent,
            rounds: self.rounds.unwrap_or(if self.smoke { 1 } else { 5 }).max(1),
            attempts: if self.smoke { 3 } else { 1 },
            scale: self.scale(&pin)?,
            congestion: self.congestion.clone(),
            pin,
            keys: self.keys,
            origin: self.origin,
            credentials,
        })
    }

    fn scale(&self, pin: &Pin) -> anyhow::Result<Scale> {
        let all = thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let cores = pin.others_count().unwrap_or(all);
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
            ping_pong_rate: self.ping_pong_rate,
            rate_share: self.rate_share,
            rate: 0.0,
        })
    }

    /// The wanted contestants that take any of the loads, and why others can't take part.
    fn contestants(&self, bed: &Bed, loads: &[Load]) -> anyhow::Result<(Vec<Contestant>, Vec<String>)> {
        let mut all = contestant::standard(self.truepeer(bed)?);
        all.extend(self.other_haproxy.iter().flat_map(|path| contestant::other_haproxy(path)));
        all.extend(self.other_nginx.iter().flat_map(|path| contestant::other_nginx(path)));
        all.extend(self.peer.iter().cloned().map(Contestant::by_command));
        for name in &self.contestants {
            let known = all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
            anyhow::ensure!(
                all.iter().any(|one| one.name == *name),
                "{name}: expected one of the contestants {known}"
            );
        }
        let mut absent = Vec::new();
        all.retain(|one| {
            let wanted = loads.iter().any(|load| one.carries(*load))
                && (self.contestants.is_empty()
                    || contestant::is_baseline(&one.name)
                    || self.contestants.contains(&one.name));
            if !wanted {
                return false;
            }
            let missing = one.missing();
            absent.extend(missing.iter().map(|reason| format!("{}: {reason}", one.label)));
            missing.is_none()
        });
        Ok((all, absent))
    }

    /// A copy of truepeer's binary, so that all rounds measure the same one even if it is rebuilt meanwhile.
    /// If it doesn't exist, the path where it was expected.
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
