//! Whose sockets are shown the client.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A cgroup, and what to know about it.
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    pub(crate) warning: Option<String>,
}

/// The cgroup that was named, by its path or its unit, or the root: all processes.
pub(crate) fn find(path: Option<&Path>, unit: Option<&str>) -> Result<Cgroup> {
    let root = truepeer_bpf::cgroup_root()?;
    match (path, unit) {
        (Some(path), _) => {
            ensure!(
                path.join("cgroup.procs").exists(),
                "--cgroup {}: not a cgroup v2 directory",
                path.display()
            );
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
    ensure!(!group.is_empty(), "--unit {unit}: it is not running, so that it has no cgroup");
    // A socket keeps the cgroup in which it was made: that of systemd itself, if systemd listens for the unit.
    let sockets = value("TriggeredBy").unwrap_or_default().split(' ').find(|unit| unit.ends_with(".socket"));
    let warning = sockets.map(|socket| {
        format!("{socket} listens for {unit}, so that its connections are not of the unit's cgroup and keep the sender's address; leave --unit out")
    });
    Ok(Cgroup { path: root.join(group), warning })
}
