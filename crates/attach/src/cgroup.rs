//! The cgroups to attach to: the root, or that of a container.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use truepeer_bpf::{Cgroups, cgroup_root, cgroups_below, is_cgroup};
use truepeer_sys::netns::in_cgroup_namespace_of;

/// Finds the cgroup that `--cgroup` or `--unit` names, or that of a container's process; otherwise the root.
/// May return a warning.
pub(super) fn find(
    path: Option<&Path>,
    unit: Option<&str>,
    process: Option<u32>,
    covered: Option<u64>,
) -> Result<(Cgroups, Option<String>)> {
    let root = cgroup_root()?;
    ensure!(
        unit.is_none() || process.is_none(),
        "--unit names a service of this host; leave it out for a container"
    );
    if let Some(path) = path {
        ensure!(is_cgroup(path), "--cgroup {}: not a cgroup v2 directory", path.display());
    }
    let (shown, warning) = match (path, unit, process) {
        (Some(path), _, None) => (path.to_owned(), None),
        (None, Some(unit), None) => of_unit(&root, unit)?,
        (None, _, None) => (root.clone(), None),
        // Only the container's sockets can serve its ports, so all hooks are on its cgroup.
        (path, _, Some(process)) => {
            let mut all = of_container(&root, process, path)?;
            if path.is_none() {
                all = with_covered(&root, all, covered);
            }
            return Ok((Cgroups { shown: all.clone(), all }, None));
        }
    };
    Ok((Cgroups { all: root, shown }, warning))
}

/// In a pod, another container of the same network namespace may be attached already. Returns a cgroup above
/// both then: if the hooks moved to this container's cgroup, the other one's connections would have lost
/// their header and would show the sender.
fn with_covered(root: &Path, own: PathBuf, covered: Option<u64>) -> PathBuf {
    let number = |path: &Path| fs::metadata(path).ok().map(|found| found.ino());
    let Some(covered) = covered.filter(|covered| number(&own) != Some(*covered)) else { return own };
    let Some(other) = cgroups_below(root).into_iter().find(|path| number(path) == Some(covered)) else {
        return own;
    };
    own.ancestors().find(|path| other.starts_with(path)).map_or(own.clone(), Path::to_owned)
}

fn of_unit(root: &Path, unit: &str) -> Result<(PathBuf, Option<String>)> {
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
    // The service manager names it from its own root, which is always mounted here. In a container that is
    // not the root of all.
    let own = Path::new("/sys/fs/cgroup").join(group);
    let path = if is_cgroup(&own) { own } else { root.join(group) };
    // A socket belongs to the cgroup that created it. With socket activation that is systemd's own cgroup.
    let sockets = value("TriggeredBy").unwrap_or_default().split(' ').find(|unit| unit.ends_with(".socket"));
    let warning = sockets.map(|socket| {
        format!("{socket} listens for {unit}: its connections belong to systemd's cgroup and would keep the sender's address; leave --unit out")
    });
    Ok((path, warning))
}

/// The cgroup given, if the process is in it; else the container's.
fn of_container(root: &Path, process: u32, given: Option<&Path>) -> Result<PathBuf> {
    let own = of_process(root, process)?;
    let Some(given) = given else { return Ok(of_namespace(root, &own, process)) };
    // By their numbers: the hierarchy may be mounted several times.
    let wanted = fs::metadata(given).with_context(|| format!("--cgroup {}", given.display()))?.ino();
    let found = own
        .ancestors()
        .take_while(|path| path.starts_with(root))
        .find(|path| fs::metadata(path).is_ok_and(|found| found.ino() == wanted));
    let found = found.with_context(|| {
        format!(
            "--cgroup {}: process {process} is not in it but in {}; expected that or one above it",
            given.display(),
            own.display()
        )
    })?;
    Ok(found.to_owned())
}

/// The cgroup that lists the process. The path that the kernel tells begins at this process's own cgroup
/// namespace, which may not be where the root is.
fn of_process(root: &Path, process: u32) -> Result<PathBuf> {
    let told = told_path(process)?;
    let direct = root.join(told.trim_start_matches('/'));
    if !told.starts_with("/..") && lists(&direct, process) {
        return Ok(direct);
    }
    let found = cgroups_below(root).into_iter().find(|path| lists(path, process));
    found.with_context(|| format!("no cgroup below {} lists process {process}", root.display()))
}

/// The root of the container's cgroup namespace, if it has one: its servers may be in cgroups below.
fn of_namespace(root: &Path, own: &Path, process: u32) -> PathBuf {
    let inside = in_cgroup_namespace_of(process, || told_path(process));
    let outside = told_path(process).unwrap_or_default();
    let below = own.strip_prefix(root).unwrap_or(Path::new(""));
    match inside {
        Ok(Ok(inside)) if inside != outside => {
            let depth = Path::new(inside.trim_start_matches('/')).components().count();
            let is_below = below.ends_with(inside.trim_start_matches('/')) && !inside.starts_with("/..");
            let namespace = is_below.then(|| own.ancestors().nth(depth)).flatten();
            namespace.filter(|path| path.starts_with(root)).unwrap_or(own).to_owned()
        }
        _ => own.to_owned(),
    }
}

/// Its path in cgroup v2, as the calling thread's cgroup namespace shows it.
fn told_path(process: u32) -> Result<String> {
    let file = format!("/proc/{process}/cgroup");
    let text = fs::read_to_string(&file).with_context(|| file.clone())?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(path.with_context(|| format!("{file} names no cgroup of v2"))?.to_owned())
}

fn lists(cgroup: &Path, process: u32) -> bool {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().any(|line| line.parse() == Ok(process))
}
