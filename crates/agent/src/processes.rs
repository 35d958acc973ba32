//! The processes of pods, found in /proc alone: the kernel says by its cgroup to which pod a process belongs.
//!
//! ```text
//! 0::/kubepods/burstable/pod4f5c…-…/1d2e…                                        driver cgroupfs
//! 0::/kubepods.slice/…/kubepods-burstable-pod4f5c…_….slice/cri-containerd-1d2e….scope   driver systemd
//! 0::/../../pod4f5c…-…/1d2e…                                          seen from another cgroup namespace
//! 4:memory:/kubepods/burstable/pod4f5c…-…/1d2e…                       hybrid: v1 has the pods, v2 may not
//! ```
//!
//! A container may have cgroups below its own, with any name. So only the outermost component that names a
//! pod counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::rules::Port;

/// Where to attach: a process that is in the pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pid: u32,
    /// Of the process, in clock ticks since boot: another process may get the same number later.
    pub(crate) started: u64,
    /// The inode of its network namespace.
    pub(crate) netns: u64,
    /// The name of the pod's own cgroup in the hierarchy of v2, if it has one there.
    pub(crate) cgroup: Option<String>,
}

/// Of a network namespace.
pub(crate) type Addresses = BTreeSet<IpAddr>;

/// A file system like the host's /proc.
#[derive(Debug, Clone)]
pub(crate) struct Proc(PathBuf);

impl Proc {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    fn of(&self, pid: u32) -> PathBuf {
        self.0.join(pid.to_string())
    }

    /// The network namespace of the machine, in which its first process is. A hardened one may not be looked
    /// at: then that of the kernel's threads, whose first is process 2, without a parent.
    pub(crate) fn netns_of_host(&self) -> io::Result<u64> {
        self.netns(1).or_else(|error| {
            let is_kernel = self.stat(2, 1).is_some_and(|parent| parent == 0);
            if is_kernel { self.netns(2) } else { Err(error) }
        })
    }

    fn netns(&self, pid: u32) -> io::Result<u64> {
        Ok(fs::metadata(self.of(pid).join("ns/net"))?.ino())
    }

    fn started(&self, pid: u32) -> Option<u64> {
        self.stat(pid, 19)
    }

    /// The time in the clock of [`Place::started`]. 0 if it can't be read: every process started later.
    pub(crate) fn ticks(&self) -> u64 {
        // In hundredths of a second, as these are.
        let text = fs::read_to_string(self.0.join("uptime")).unwrap_or_default();
        let uptime = text.split(' ').next().and_then(|seconds| seconds.split_once('.'));
        let number = uptime.and_then(|(seconds, hundredths)| format!("{seconds}{hundredths}").parse().ok());
        number.unwrap_or(0)
    }

    /// A number of /proc/PID/stat, counted from the one after the program's name, which may contain blanks
    /// and parentheses.
    fn stat(&self, pid: u32, field: usize) -> Option<u64> {
        let stat = fs::read_to_string(self.of(pid).join("stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        after_name.split_whitespace().nth(field)?.parse().ok()
    }

    /// The place of a process, unless it has ended or uses the host's network.
    pub(crate) fn place(&self, pid: u32, host: u64) -> Option<Place> {
        let (netns, started) = (self.netns(pid).ok()?, self.started(pid)?);
        (netns != host).then_some(Place { pid, started, netns, cgroup: None })
    }

    /// Whether the process of a place is still the same, in the same network namespace.
    pub(crate) fn is_still(&self, place: &Place) -> bool {
        self.started(place.pid) == Some(place.started)
            && self.netns(place.pid).is_ok_and(|netns| netns == place.netns)
    }

    /// Each pod's place, by the pod's UID: its process that was started first, the sandbox's. A container may
    /// make network namespaces of its own, but is never first where there is a sandbox's process (CRI-O
    /// starts one only if asked to). A process that still has the host's network namespace is about to leave
    /// it (runc), or its pod uses the host's network.
    pub(crate) fn pods(&self, host: u64) -> BTreeMap<String, Place> {
        let mut pods: BTreeMap<String, Place> = BTreeMap::new();
        for pid in self.pids() {
            let Ok(text) = fs::read_to_string(self.of(pid).join("cgroup")) else { continue };
            let Some(Member { uid, cgroup }) = Member::of(&text) else { continue };
            let Some(place) = self.place(pid, host).filter(|_| !self.is_of_runtime(pid)) else { continue };
            let is_first =
                pods.get(&uid).is_none_or(|found| (place.started, pid) < (found.started, found.pid));
            if is_first {
                pods.insert(uid, Place { cgroup, ..place });
            }
        }
        pods
    }

    /// runc's own processes are in a pod's cgroup and network for a moment, before the pod's first program
    /// begins (`runc:[1:CHILD]`).
    fn is_of_runtime(&self, pid: u32) -> bool {
        fs::read_to_string(self.of(pid).join("comm")).is_ok_and(|name| name.starts_with("runc:["))
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    /// Ports without a server in the network namespace of a place: of TCP those without a listening socket,
    /// of UDP those without any. Empty if its sockets can't be read.
    pub(crate) fn unserved(&self, place: &Place, ports: &BTreeSet<Port>) -> Vec<Port> {
        let read = |name: &str| read_some(&self.of(place.pid).join("net").join(name));
        let (Some(tcp), Some(tcp6)) = (read("tcp"), read("tcp6")) else { return Vec::new() };
        let (Some(udp), Some(udp6)) = (read("udp"), read("udp6")) else { return Vec::new() };
        // Each has a line of titles, unless it could not be read.
        if tcp.is_empty() || udp.is_empty() {
            return Vec::new();
        }
        let is_served = |port: &Port| match port {
            Port::Tcp(port) => [&tcp, &tcp6].iter().any(|table| has_socket(table, *port, "0A")),
            Port::Udp { backend, .. } => [&udp, &udp6].iter().any(|table| has_socket(table, *backend, "07")),
        };
        ports.iter().filter(|port| !is_served(port)).copied().collect()
    }

    /// The addresses besides the loopback's and link-local ones. `None`: it can't be told.
    pub(crate) fn addresses(&self, place: &Place) -> Option<Addresses> {
        let read = |name: &str| read_some(&self.of(place.pid).join("net").join(name));
        let (ipv4, ipv6) = (read("fib_trie")?, read("if_inet6")?);
        Some(of_ipv4(&ipv4).chain(of_ipv6(&ipv6)).collect())
    }
}

/// Whoever may add routes in a pod makes these as long as he likes: `None` if there is more than is read.
/// Empty if it can't be read.
fn read_some(path: &Path) -> Option<String> {
    const MAX: u64 = 1 << 20;
    let mut text = String::new();
    let file = fs::File::open(path).map(|file| file.take(MAX));
    let length = file.and_then(|mut file| file.read_to_string(&mut text)).unwrap_or_default();
    u64::try_from(length).is_ok_and(|length| length < MAX).then_some(text)
}

/// A line of /proc/net/tcp or udp: `0: 0100007F:0050 00000000:0000 0A …`: the local address and port, the
/// other one, the state (0A: TCP_LISTEN, 07: a UDP socket that is not connected).
fn has_socket(table: &str, port: u16, state: &str) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(state)
    })
}

/// The kernel's routing tables: an address of this network namespace is the line before `/32 host LOCAL`.
fn of_ipv4(fib_trie: &str) -> impl Iterator<Item = IpAddr> {
    let pairs = fib_trie.lines().zip(fib_trie.lines().skip(1));
    let own = pairs.filter(|(_, kind)| kind.trim() == "/32 host LOCAL");
    let addresses = own.filter_map(|(line, _)| line.trim().strip_prefix("|-- ")?.parse::<Ipv4Addr>().ok());
    addresses.filter(|ip| !ip.is_loopback() && !ip.is_link_local()).map(IpAddr::V4)
}

/// Each line: address, interface's index, prefix's length, scope, flags, interface. Scope 00 is global.
fn of_ipv6(if_inet6: &str) -> impl Iterator<Item = IpAddr> {
    let global = if_inet6.lines().filter(|line| line.split_whitespace().nth(3) == Some("00"));
    let digits = global.filter_map(|line| u128::from_str_radix(line.split_whitespace().next()?, 16).ok());
    digits.map(|bits| IpAddr::V6(bits.into()))
}

/// Which pod a process belongs to.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    uid: String,
    cgroup: Option<String>,
}

impl Member {
    /// From /proc/PID/cgroup. All hierarchies that name a pod must name the same: whoever may move itself in
    /// one of them may not pass for another pod.
    fn of(text: &str) -> Option<Self> {
        let mut member: Option<Self> = None;
        for line in text.lines() {
            let (hierarchy, rest) = line.split_once(':')?;
            let (_, path) = rest.split_once(':')?;
            // Any user of the machine may make cgroups of any name there.
            if path.split('/').any(|part| part == "user.slice") {
                continue;
            }
            let found = path.split('/').find_map(|part| Some((pod_uid(part)?, part)));
            let Some((uid, component)) = found else { continue };
            let is_v2 = hierarchy == "0";
            match &mut member {
                Some(member) if member.uid != uid => return None,
                Some(member) if is_v2 => member.cgroup = Some(component.to_owned()),
                Some(_) => {}
                None => member = Some(Self { uid, cgroup: is_v2.then(|| component.to_owned()) }),
            }
        }
        member
    }
}

/// `pod<UID>`, or systemd's `…-pod<UID with _ for ->.slice`.
fn pod_uid(component: &str) -> Option<String> {
    let uid = match component.strip_suffix(".slice") {
        Some(slice) => {
            let uid = slice.strip_prefix("pod").or_else(|| slice.rsplit_once("-pod").map(|(_, uid)| uid))?;
            uid.replace('_', "-")
        }
        None => component.strip_prefix("pod")?.to_owned(),
    };
    is_uid(&uid).then_some(uid)
}

/// As the API server makes them: 8-4-4-4-12 hexadecimal digits.
pub(crate) fn is_uid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let is_hex = |group: &&str| group.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(is_hex)
}

/// The directory of that name in a hierarchy of cgroup v2: the nearest to a root, since a container may make
/// any name below its own. Paths in /proc are of no use for that in a container, whose cgroup namespace
/// begins elsewhere.
pub(crate) fn cgroup_directory(roots: &[PathBuf], name: &str) -> Option<PathBuf> {
    let mut level: Vec<PathBuf> = roots.to_vec();
    // kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod….slice, perhaps below the cgroups of a
    // node that is a container itself.
    for _ in 0..8 {
        if let Some(found) = level.iter().map(|directory| directory.join(name)).find(|path| path.is_dir()) {
            return Some(found);
        }
        level = level.iter().flat_map(|directory| directories(directory)).collect();
    }
    None
}

/// Those in which pods may be: not those of pods.
fn directories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_wanted = |entry: &fs::DirEntry| {
        entry.file_type().is_ok_and(|kind| kind.is_dir())
            && entry.file_name().to_str().is_some_and(|name| pod_uid(name).is_none())
    };
    entries.filter(is_wanted).map(|entry| entry.path()).collect()
}

/// Where cgroup v2 is mounted: from /proc/self/mountinfo.
pub(crate) fn cgroup_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    });
    mounts.collect()
}

#[cfg(test)]
mod tests;
