//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// The network stacks to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DemoStack {
    /// The kernel's.
    Kernel,
    /// VPP's.
    Vpp,
    /// The kernel's, and VPP's if it is installed.
    Both,
}

/// Show truepeer https between a client and NGINX, and measure it.
#[derive(Debug, Parser)]
#[command(name = "demo-https")]
pub(super) struct DemoArgs {
    /// The program truepeer
    #[arg(value_name = "PATH-OF-TRUEPEER")]
    pub(super) truepeer: PathBuf,
    /// The network stack: the kernel's, VPP's, or both
    #[arg(long, value_enum, default_value_t = DemoStack::Both)]
    pub(super) stack: DemoStack,
    /// VPP's program, or its installation prefix [default: $TRUEPEER_VPP, or from PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) vpp: Option<PathBuf>,
    #[command(flatten)]
    pub(super) load: LoadArgs,
}

/// The load's options, with wrk2's letters.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArgs {
    /// Threads of the load
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub(super) threads: NonZeroUsize,
    /// Connections, of all threads together
    #[arg(short, long, value_name = "N", default_value = "10")]
    pub(super) connections: NonZeroUsize,
    /// Duration: 10s, 1m
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(super) duration: Duration,
    /// Requests a second over all connections; latencies then count from when a request was due [default:
    /// each connection sends the next request when it has its answer]
    #[arg(short = 'R', long, value_name = "N")]
    pub(super) rate: Option<NonZeroUsize>,
    /// Duration of the warm-up, which is not counted
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = time)]
    pub(super) warm_up: Duration,
    /// Also print the figures for programs
    #[arg(long, hide = true)]
    pub(super) figures: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    if duration.is_zero() { Err("expected more than no time".to_owned()) } else { Ok(duration) }
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 10s, 500ms or 1m".to_owned();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().map_err(|_| wrong())?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "" | "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(wrong()),
    }
}

impl LoadArgs {
    /// One thread in a closed loop, with figures for programs.
    pub(crate) fn closed_loop(connections: NonZeroUsize, warm_up: Duration, duration: Duration) -> Self {
        Self { threads: NonZeroUsize::MIN, connections, duration, rate: None, warm_up, figures: true }
    }

    /// The same options as arguments.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = vec![
            format!("--threads={}", self.threads),
            format!("--connections={}", self.connections),
            format!("--duration={}ms", self.duration.as_millis()),
            format!("--warm-up={}ms", self.warm_up.as_millis()),
        ];
        words.extend(self.figures.then(|| "--figures".to_owned()));
        words.extend(self.rate.map(|rate| format!("--rate={rate}")));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "s", "10h", "0s", "-1s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_load_is_said_once_more_in_its_words() {
        let words = ["demo-https", "x", "-t2", "-c12", "-d3s", "-R1000"];
        let first = DemoArgs::try_parse_from(words).unwrap().load;
        let again = ["demo-https".to_owned(), "x".to_owned()].into_iter().chain(first.words());
        assert_eq!(DemoArgs::try_parse_from(again).unwrap().load.words(), first.words());
    }
}
