//! The cgroup whose sockets see the client's address.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::{cgroup_root, is_cgroup};

/// A cgroup, and a warning about it, if any.
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    pub(crate) warning: Option<String>,
}

/// Finds the cgroup given by `--cgroup` or `--unit`. Without either it is the root: all processes.
pub(crate) fn find(path: Option<&Path>, unit: Option<&str>) -> Result<Cgroup> {
    let root = cgroup_root()?;
    match (path, unit) {
        (Some(path), _) => {
            ensure!(is_cgroup(path), "--cgroup {}: not a cgroup v2 directory", path.display());
            Ok(Cgroup { path: path.to_owned(), warning: None })
        }
        (None, Some(unit)) => of_unit(&root, unit),
        (None, None) => Ok(Cgroup { path: root, warning: None }),
    }
}

fn of_unit(root: &Path, unit: &str) -> Result<Cgroup> {
    let output = Command::new("systemctl")
        .args(["show", "--property", "ControlGroup", "--property", "TriggeredBy", "--", unit])
        .output()
        .context("--unit: systemctl can't be run; use --cgroup PATH")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let group = value("ControlGroup").unwrap_or_default().trim_start_matches('/');
    ensure!(
        !group.is_empty(),
        "--unit {unit}: the unit has no cgroup because it is not running; start it first"
    );
    // A socket belongs to the cgroup that created it. With socket activation that is systemd's own cgroup.
    let sockets = value("TriggeredBy").unwrap_or_default().split(' ').find(|unit| unit.ends_with(".socket"));
    let warning = sockets.map(|socket| {
        format!("{socket} listens for {unit}: its connections belong to systemd's cgroup and would keep the sender's address; leave --unit out")
    });
    Ok(Cgroup { path: root.join(group), warning })
}
