//! Which process has a socket.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A process that has a socket of a port open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// The processes by the inodes of their sockets, as far as this process may look.
pub(super) fn owners(inodes: &[u64]) -> BTreeMap<u64, Owner> {
    let wanted: BTreeMap<String, u64> =
        inodes.iter().map(|inode| (format!("socket:[{inode}]"), *inode)).collect();
    let mut found = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for file in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let link = fs::read_link(file.path()).unwrap_or_default();
            if let Some(inode) = link.to_str().and_then(|link| wanted.get(link)) {
                found.entry(*inode).or_insert_with(|| Owner { pid, name: name(&process.path()) });
            }
        }
    }
    found
}

/// Its owner chooses it, so it may have control characters, which a terminal would obey.
fn name(process: &Path) -> String {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    name.trim().replace(|c: char| c.is_control(), "?")
}

impl Owner {
    pub(super) fn is_truepeer(&self) -> bool {
        self.name.starts_with("truepeer")
    }

    /// Whether `truepeer run` started it: by its library, or as an ancestor.
    pub(super) fn is_run(&self) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        let preloads = environment.split(|byte| *byte == 0).any(|line| {
            line.strip_prefix(b"LD_PRELOAD=")
                .is_some_and(|value| value.windows(11).any(|part| part == b"libtruepeer"))
        });
        preloads || self.ancestors().any(|ancestor| ancestor.is_command("run"))
    }

    fn ancestors(&self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self.clone()), Self::parent).skip(1)
    }

    fn parent(&self) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let pid = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let path = Path::new("/proc").join(format!("{pid}"));
        (pid > 0).then(|| Self { pid, name: name(&path) })
    }

    fn is_command(&self, command: &str) -> bool {
        let words = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        self.is_truepeer() && words.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, process {}", self.name, self.pid)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn the_process_of_a_socket_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(listener.as_fd()).unwrap().st_ino;
        let found = owners(&[inode, u64::MAX]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&inode].pid, std::process::id());
        assert!(!found[&inode].is_run());
    }
}
