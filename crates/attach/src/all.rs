//! All network namespaces of this machine in which something is attached, found by the pins.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use truepeer_bpf::{LivingCgroups, Place, Status, status_among};
use truepeer_sys::netns::NetNs;

use truepeer_sys::tell;

/// Where engines and ip-netns(8) keep namespaces without a process.
const NAMED: [&str; 3] = ["/run/netns", "/run/docker/netns", "/var/run/netns"];

/// One of them.
pub(super) struct Namespace {
    pub(super) place: Place,
    pub(super) status: Status,
    /// The lowest process in it.
    pub(super) process: Option<u32>,
}

/// Finds them. One that can't be read, because it is being attached or detached at this moment, is left out
/// with a warning, and counted.
pub(super) fn find(pins: &Path) -> Result<(Vec<Namespace>, usize)> {
    let processes = processes();
    let (mut all, mut unread) = (Vec::new(), 0);
    let cgroups = LivingCgroups::default();
    for place in Place::all(pins)? {
        match status_among(&place, &cgroups) {
            Ok(Some(status)) => {
                let process = processes.get(&status.netns).copied();
                all.push(Namespace { place, status, process });
            }
            // Another command has detached it meanwhile.
            Ok(None) => {}
            Err(error) => {
                let cookie = place.netns_cookie();
                tell!("warning: network namespace of cookie {cookie}: {:#}", anyhow::Error::new(error));
                unread += 1;
            }
        }
    }
    Ok((all, unread))
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
        let of = |process: u32| PathBuf::from(format!("/proc/{process}/ns/net"));
        let is_it = |path: &PathBuf| inode(path) == Some(self.status.netns);
        let process = self.process.map(of).filter(is_it);
        // It may have ended, and others may have begun.
        let process = process.or_else(|| processes().get(&self.status.netns).copied().map(of));
        if process.is_some() {
            return process;
        }
        let entries = NAMED.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        entries.map(|entry| entry.path()).find(|path| inode(path) == Some(self.status.netns))
    }

    /// Opens it; by its inode, because its process may have ended meanwhile.
    pub(super) fn enter(&self) -> Result<NetNs> {
        let is_it = |netns: &NetNs| netns.id().is_ok_and(|id| id == self.status.netns);
        let netns = self.path().and_then(|path| NetNs::open(&path).ok()).filter(is_it);
        netns.with_context(|| {
            format!(
                "{}: it has no process and no name, so it can't be entered; it is detached when it ends",
                self.name()
            )
        })
    }
}
