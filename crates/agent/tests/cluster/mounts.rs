//! A mount namespace with a BPF file system of its own, which ends with the test.

use std::process::{Command, ExitCode};

const INSIDE: &str = "TRUEPEER_AGENT_TEST_MOUNTS";

/// Where it is mounted.
pub(crate) const BPF: &str = "/sys/fs/bpf";

/// Runs this program again in there, and returns how it ended; `None` in there, and where that is not
/// possible.
pub(crate) fn in_namespace_of_its_own() -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() || crate::cluster::lack().is_some() {
        return None;
    }
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    inside.arg(format!("mount -t bpf bpf {BPF}; exec \"$0\" \"$@\"")).arg(std::env::current_exe().ok()?);
    let status = inside.args(std::env::args_os().skip(1)).env(INSIDE, "1").status().ok()?;
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
