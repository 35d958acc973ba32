//! A process's descriptors by kind, so that a failure names what was not given back.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use truepeer_testbed::Host;
use truepeer_testbed::sockets::parse_address;

/// The name of a UDP flow's socket.
const FLOW: &str = "socket of a UDP flow";
const PIPE: &str = "pipe";
/// TCP's and UDP's states of /proc/net.
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";

/// How many there are of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Descriptors(BTreeMap<String, u64>);

impl Descriptors {
    /// Those of a process on `host`.
    pub(crate) fn of(pid: i32, host: &Host) -> anyhow::Result<Self> {
        // Sockets come and go meanwhile: one that was there before or after the look has a name.
        let mut sockets = host.run(sockets)??;
        let targets = targets(pid)?;
        sockets.extend(host.run(self::sockets)??);
        let mut all = Self::default();
        for target in targets {
            *all.0.entry(kind(&target, &sockets)).or_default() += 1;
        }
        Ok(all)
    }

    /// The most of each kind in any of two looks.
    pub(crate) fn most(mut self, other: &Self) -> Self {
        for (kind, count) in &other.0 {
            let most = self.0.entry(kind.clone()).or_default();
            *most = (*most).max(*count);
        }
        self
    }

    /// The kinds of which there are more than `before`. Workers keep some empty pipes for the next transfer:
    /// `pooled` more are right.
    pub(crate) fn more_than(&self, before: &Self, pooled: u64) -> Vec<String> {
        let before = |kind: &String| before.0.get(kind).copied().unwrap_or_default();
        let kept = |kind: &str| if kind == PIPE { pooled } else { 0 };
        let more = self.0.iter().filter(|(kind, count)| **count > before(kind) + kept(kind));
        more.map(|(kind, count)| format!("{kind}: {count} (before: {})", before(kind))).collect()
    }
}

/// What the descriptors lead to.
fn targets(pid: i32) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    // One may have been closed meanwhile.
    let target = |path: &Path| fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned());
    Ok(entries.filter_map(|entry| target(&entry.ok()?.path())).collect())
}

fn kind(target: &str, sockets: &HashMap<String, String>) -> String {
    if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
        return sockets.get(inode).cloned().unwrap_or_else(|| "socket that is bound to nothing".to_owned());
    }
    // "pipe:[123]", "anon_inode:[eventfd]", "/dev/null"; a program's output has a number in its name.
    if target.starts_with("pipe:") {
        PIPE.to_owned()
    } else {
        target.replace(|c: char| c.is_ascii_digit(), "")
    }
}

/// The kind of each socket of the calling thread's network namespace, by inode.
fn sockets() -> anyhow::Result<HashMap<String, String>> {
    let mut sockets = HashMap::new();
    // The columns of each table: the address if it has any, the state, and the inode.
    for (table, state_at, inode_at) in [
        ("tcp", Some(3), 9),
        ("tcp6", Some(3), 9),
        ("udp", Some(3), 9),
        ("udp6", Some(3), 9),
        ("raw", Some(3), 9),
        ("raw6", Some(3), 9),
        ("unix", None, 6),
        ("netlink", None, 9),
        ("packet", None, 8),
    ] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<_> = line.split_whitespace().collect();
            let inode = words.get(inode_at).with_context(|| format!("{table}: {line}"))?;
            let local = || words.get(1).and_then(|local| parse_address(local));
            let name = match (table, state_at.and_then(|at| words.get(at)).copied()) {
                ("udp" | "udp6", Some(ESTABLISHED)) => FLOW.to_owned(),
                ("udp" | "udp6", _) | ("tcp" | "tcp6", Some(LISTEN)) => {
                    format!("{table} socket on {}", local().map_or_else(String::new, |at| at.to_string()))
                }
                ("tcp" | "tcp6", _) => format!("{table} connection"),
                _ => format!("{table} socket"),
            };
            sockets.insert((*inode).to_owned(), name);
        }
    }
    Ok(sockets)
}
