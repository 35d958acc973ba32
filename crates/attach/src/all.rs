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
        let process = self.process.map(|process| PathBuf::from(format!("/proc/{process}/ns/net")));
        // It may have ended, and others may have begun.
        process.filter(|path| inode(path) == Some(self.status.netns)).or_else(|| path_of(self.status.netns))
    }

    /// Opens it; by its inode, because its process may have ended meanwhile.
    pub(super) fn enter(&self) -> Result<NetNs> {
        open(self.path(), self.status.netns).with_context(|| {
            format!(
                "{}: it has no process and no name, so it can't be entered; it is detached when it ends",
                self.name()
            )
        })
    }
}

/// Opens the network namespace with this inode.
pub(super) fn enter(netns: u64) -> Result<NetNs> {
    let found = open(path_of(netns), netns);
    found.with_context(|| {
        format!("network namespace {netns} has no process and no name, so it can't be entered")
    })
}

fn open(path: Option<PathBuf>, netns: u64) -> Option<NetNs> {
    let is_it = |found: &NetNs| found.id().is_ok_and(|id| id == netns);
    path.and_then(|path| NetNs::open(&path).ok()).filter(is_it)
}

/// A process in it, or its name.
fn path_of(netns: u64) -> Option<PathBuf> {
    let process = processes().get(&netns).map(|process| PathBuf::from(format!("/proc/{process}/ns/net")));
    let entries = || NAMED.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    process.or_else(|| entries().map(|entry| entry.path()).find(|path| inode(path) == Some(netns)))
}
