//! A mount namespace with a BPF file system of its own, which ends with the test.

use std::process::{Command, ExitCode};

use crate::confined;

const INSIDE: &str = "TRUEPEER_AGENT_TEST_MOUNTS";

/// The directory of the agents' pins there.
pub(crate) const PINS: &str = "/sys/fs/bpf/truepeer";

/// Runs this program again in there, and returns how it ended; `None` in there, and where that is not
/// possible.
pub(crate) fn in_namespace_of_its_own() -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() || crate::cluster::lack().is_some() {
        return None;
    }
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    let as_in_the_container = match confined::PINS {
        pins if confined::is_on() => format!("mkdir -p {PINS} {pins}; mount --bind {PINS} {pins};"),
        _ => String::new(),
    };
    inside.arg(format!("mount -t bpf bpf /sys/fs/bpf; {as_in_the_container} exec \"$0\" \"$@\""));
    inside.arg(std::env::current_exe().ok()?);
    let status = inside.args(std::env::args_os().skip(1)).env(INSIDE, "1").status().ok()?;
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
