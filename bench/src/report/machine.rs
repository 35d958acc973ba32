//! The machine of the measurement.

use std::fs;
use std::thread;

use anyhow::Context;
use truepeer_testbed::Bed;

use crate::args::Plan;
use crate::backend;
use crate::place::{self, Place};
use crate::suites::Suite;
use crate::tls::SPOKEN;

/// Machine, kernel, settings and versions.
pub(crate) struct Machine {
    /// Label and value, in order.
    pub(crate) facts: Vec<(&'static str, String)>,
}

impl Machine {
    /// For the loads of a suite. Reads the machine's state now, before the load.
    pub(crate) fn examine(bed: &Bed, plan: &Plan, suite: Suite) -> anyhow::Result<Self> {
        let load = plan.loads_of(suite).next().context("a load")?;
        let place = Place::make(load, plan.congestion.as_deref())?;
        let settings = place.run(|| Ok(network_settings(suite)))?;
        let mut facts = vec![
            ("machine", format!("{}, {} cores, {} of memory", processor(), cores(), memory())),
            ("system", format!("{}, Linux {}", distribution(), line("/proc/sys/kernel/osrelease"))),
            ("load average before", line("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")),
            ("network", settings),
            ("measured", measured(plan, suite)),
        ];
        if suite == Suite::Https {
            facts.push(("origin", backend::describe(plan.origin, bed)));
        }
        if matches!(suite, Suite::Https | Suite::Stacks) {
            facts.push(("tls", tls(plan)));
        }
        facts.push(("versions", versions(bed, plan, suite)));
        if !plan.absent.is_empty() {
            facts.push(("absent", plan.absent.join("; ")));
        }
        Ok(Self { facts })
    }
}

fn versions(bed: &Bed, plan: &Plan, suite: Suite) -> String {
    let contestants = plan.contestants_of(suite).into_iter().map(|who| &plan.contestants[who]);
    let mut versions: Vec<String> =
        contestants.filter_map(|who| Some(format!("{}: {}", who.label, who.version(bed)?))).collect();
    versions.dedup_by(|one, other| one.rsplit(": ").next() == other.rsplit(": ").next());
    versions.join("; ")
}

fn network_settings(suite: Suite) -> String {
    let addresses = match suite {
        Suite::Hosts => {
            return format!(
                "three private network namespaces in a line of veth pairs (load, contestant, backend), made anew for each measurement; \
                 congestion control {}; claimed clients and senders' addresses rotate, no pair comes twice",
                place::read("tcp_congestion_control")
            );
        }
        Suite::Proxy => "claimed clients and senders' addresses",
        Suite::Https => "the load's addresses",
        Suite::Stacks => {
            return format!(
                "kernel: three private network namespaces in a line of veth pairs, congestion control {}; VPP: `truepeer vpp up \
                 --loopback`, three namespaces of VPP's, congestion control cubic; both made anew for each measurement",
                place::read("tcp_congestion_control")
            );
        }
    };
    format!(
        "loopback of a private network namespace, made anew for each measurement; congestion control {}; \
         up to {} sockets in TIME_WAIT kept, tcp_tw_reuse {}; {addresses} rotate, no pair comes twice",
        place::read("tcp_congestion_control"),
        place::read("tcp_max_tw_buckets"),
        place::read("tcp_tw_reuse"),
    )
}

fn measured(plan: &Plan, suite: Suite) -> String {
    let scale = &plan.scale;
    let threads =
        if scale.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", scale.threads) };
    let (longer, who) = match suite {
        Suite::Stacks => {
            return format!(
                "{} rounds of {:.1} s after {:.1} s of warm-up; load, origin and proxies with one worker each; kernel: the proxy on one \
                 core, origin and load on another; VPP: VPP, which polls, on one core, all programs on the other",
                plan.rounds,
                scale.window.as_secs_f64(),
                scale.warm_up.as_secs_f64(),
            );
        }
        Suite::Proxy => (" (streaming: four times that)", format!("load and backend with {threads} each")),
        Suite::Hosts => ("", format!("load and backend with {threads} each")),
        Suite::Https => ("", format!("load with {threads}, origin and contestants with one worker each")),
    };
    let cores = match plan.pin.others_count() {
        Some(1) => "the contestant pinned to one core, load and backend to another one".to_owned(),
        Some(others) => format!("the contestant pinned to one core, load and backend to {others} others"),
        None => "sharing the cores with the contestant".to_owned(),
    };
    format!(
        "{} rounds of {:.1} s after {:.1} s of warm-up{longer}; {who}, {cores}",
        plan.rounds,
        scale.window.as_secs_f64(),
        scale.warm_up.as_secs_f64(),
    )
}

fn tls(plan: &Plan) -> String {
    format!("{SPOKEN}, certificates with {} keys; nothing is resumed", plan.keys.describe())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

fn processor() -> String {
    value("/proc/cpuinfo", "model name").unwrap_or_else(|_| std::env::consts::ARCH.to_owned())
}

fn memory() -> String {
    let kib =
        value("/proc/meminfo", "MemTotal").ok().and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    kib.map_or("?".to_owned(), |kib| format!("{:.0} GiB", kib as f64 / f64::from(1 << 20)))
}

fn distribution() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

fn line(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// The text behind the name and a colon.
fn value(file: &str, name: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(file).with_context(|| file.to_owned())?;
    let line = text.lines().find(|line| line.starts_with(name)).with_context(|| name.to_owned())?;
    Ok(line.split_once(':').map_or("", |(_, value)| value).trim().to_owned())
}
