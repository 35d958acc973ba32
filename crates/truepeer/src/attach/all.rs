//! All network namespaces of this machine in which something is attached, found by the pins.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use truepeer_bpf::{NewConnections, Place, Status, detach_now, drain, status};
use truepeer_sys::netns::NetNs;

/// Where engines and ip-netns(8) keep namespaces without a process.
const NAMED: [&str; 3] = ["/run/netns", "/run/docker/netns", "/var/run/netns"];

/// One of them.
pub(super) struct Namespace {
    pub(super) place: Place,
    pub(super) status: Status,
    /// The lowest process in it.
    pub(super) process: Option<u32>,
}

/// Finds them.
pub(super) fn find(pins: &Path) -> Result<Vec<Namespace>> {
    let processes = processes();
    let mut all = Vec::new();
    for place in Place::all(pins)? {
        // Another command may have detached it meanwhile.
        let Some(status) = status(&place)? else { continue };
        let process = processes.get(&status.netns).copied();
        all.push(Namespace { place, status, process });
    }
    Ok(all)
}

/// The lowest process of each network namespace, by its inode.
fn processes() -> BTreeMap<u64, u32> {
    let mut found = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some(inode) = inode(Path::new(&format!("/proc/{process}/ns/net"))) {
            let lowest = found.entry(inode).or_insert(process);
            *lowest = process.min(*lowest);
        }
    }
    found
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

impl Namespace {
    /// For messages.
    pub(super) fn name(&self) -> String {
        let inode = self.status.netns;
        match self.process {
            Some(process) => format!("network namespace {inode} (process {process})"),
            None => format!("network namespace {inode}"),
        }
    }

    fn path(&self) -> Option<PathBuf> {
        if let Some(process) = self.process {
            return Some(PathBuf::from(format!("/proc/{process}/ns/net")));
        }
        let entries = NAMED.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        entries.map(|entry| entry.path()).find(|path| inode(path) == Some(self.status.netns))
    }

    /// Stops checking new connections, and returns how many are open.
    pub(super) fn drain(&self, new: NewConnections) -> Result<usize> {
        Ok(drain(&self.place, new)?.total())
    }

    /// Ends open connections that need the programs, which only the namespace's own kernel tables can do.
    pub(super) fn detach(&self, new: NewConnections) -> Result<()> {
        let path = self.path().with_context(|| {
            format!(
                "{}: it has no process and no name, so it can't be entered; it is detached when it ends",
                self.name()
            )
        })?;
        NetNs::open(&path)
            .and_then(|netns| netns.run(|| detach_now(&self.place, new)))
            .with_context(|| self.name())??;
        Ok(())
    }
}
