//! Rules, routes, switches, pins and programs of the kernel, as text. Tests compare them before and after.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{SchedClassifier, TcAttachType};

use crate::bed::Bed;
use crate::program::Program;
use crate::wait::wait_for;

/// The switches that truepeer may set.
const SWITCHES: [&str; 3] = ["ipv4/tcp_fwmark_accept", "ipv4/fwmark_reflect", "ipv6/fwmark_reflect"];
/// Where truepeer pins, unless told otherwise.
const PINS: &str = "/sys/fs/bpf";

/// What is left of truepeer in the network namespace of the calling thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelState {
    /// Rules and routes of both families, in all tables, and the switches.
    pub routing: String,
    /// Pins of truepeer in the BPF file system, and the programs at each device.
    pub programs: String,
}

/// A counter of the calling thread's network namespace, by its name in /proc/net/snmp or netstat.
pub fn kernel_counter(name: &str) -> anyhow::Result<u64> {
    for file in ["snmp", "netstat"] {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
        // A line of names is followed by that of their values.
        let mut lines = table.lines().map(str::split_whitespace);
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            if let Some((_, value)) = names.zip(values).find(|(found, _)| *found == name) {
                return Ok(value.parse()?);
            }
        }
    }
    anyhow::bail!("the kernel has no counter {name}")
}

/// How many packets each processor of this machine has dropped because too many waited for it, in all: a
/// reset among them is not sent again.
pub fn dropped_packets() -> anyhow::Result<u64> {
    let table = fs::read_to_string("/proc/net/softnet_stat")?;
    let dropped = |line: &str| {
        let column = line.split_whitespace().nth(1).context("the second column of softnet_stat")?;
        Ok(u64::from(u32::from_str_radix(column, 16)?))
    };
    table.lines().map(dropped).sum()
}

/// Removes the pin of a link and ends the link. The kernel ends a link whose last reference is a pin later,
/// by a work queue; one whose last reference is a descriptor ends while that is closed.
pub fn end_link(pin: &Path) -> anyhow::Result<()> {
    let link: FdLink = PinnedLink::from_pin(pin)?.unpin()?;
    drop(link);
    Ok(())
}

impl KernelState {
    /// The state now. `pins` is the test's own directory of pins. Without one it is /sys/fs/bpf, where other
    /// programs of this machine may pin and unpin meanwhile.
    pub fn now(bed: &Bed, pins: Option<&Path>) -> anyhow::Result<KernelState> {
        Ok(KernelState { routing: routing(bed)?, programs: pinned(pins)? + &attached()? })
    }

    /// Waits until the kernel has this state. Keepers of killed processes may still be at work.
    pub fn wait_until_again(&self, bed: &Bed, pins: Option<&Path>) -> anyhow::Result<()> {
        let mut last = None;
        let again = wait_for("the kernel's state", || {
            last = KernelState::now(bed, pins).ok();
            last.as_ref() == Some(self)
        });
        again.with_context(|| last.map_or_else(|| "unknown".to_owned(), |last| last.differences(self)))
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.routing.lines().chain(self.programs.lines())
    }

    /// As far as both have the same lines in another order or number, all of them.
    fn differences(&self, wanted: &KernelState) -> String {
        let mut text = String::new();
        for line in self.lines().filter(|line| !wanted.lines().any(|other| other == *line)) {
            let _ = writeln!(text, "unexpected: {line}");
        }
        for line in wanted.lines().filter(|line| !self.lines().any(|other| other == *line)) {
            let _ = writeln!(text, "missing: {line}");
        }
        if text.is_empty() { format!("{self:#?}\ninstead of\n{wanted:#?}") } else { text }
    }
}

fn routing(bed: &Bed) -> anyhow::Result<String> {
    let mut text = String::new();
    for words in ["rule", "-6 rule", "route show table all", "-6 route show table all"] {
        text += &Program::new("ip").args(words.split_whitespace()).run(bed)?;
    }
    for switch in SWITCHES {
        let path = format!("/proc/sys/net/{switch}");
        text += &format!("{switch}={}", fs::read_to_string(&path).context(path)?);
    }
    Ok(text)
}

fn pinned(pins: Option<&Path>) -> anyhow::Result<String> {
    let mut found = Vec::new();
    if let Some(pins) = pins {
        walk(pins, &mut found)?;
    } else {
        let entries = fs::read_dir(PINS).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("truepeer")) {
            walk(&entry.path(), &mut found)?;
        }
    }
    found.sort();
    Ok(found.concat())
}

/// Adds the path and all below it, a line each.
fn walk(path: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context(path.display().to_string()),
    };
    found.push(format!("{}\n", path.display()));
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), found)?;
        }
    }
    Ok(())
}

/// The programs at each device, by name, in their order. A user who may not ask gets the kernel's error
/// instead.
fn attached() -> anyhow::Result<String> {
    let mut text = String::new();
    let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
    for device in devices.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()) {
        for way in [TcAttachType::Ingress, TcAttachType::Egress] {
            let names = match SchedClassifier::query_tcx(device, way) {
                Ok((_, programs)) => programs
                    .iter()
                    .map(|program| program.name_as_str().unwrap_or("?").to_owned())
                    .collect::<Vec<_>>()
                    .join(" "),
                Err(error) => error.to_string(),
            };
            writeln!(text, "{device} {way:?}: {names}")?;
        }
    }
    Ok(text)
}
