//! The network namespace that is named: of a container, a process, by its own name, or this one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use truepeer_sys::netns::NetNs;

use super::engine;
use truepeer_config::spec::AttachTarget;

/// A network namespace, and the process by which it was found.
pub(super) struct Found {
    netns: Option<NetNs>,
    process: Option<u32>,
}

/// Finds it.
pub(super) fn find(target: &AttachTarget) -> Result<Found> {
    match target {
        AttachTarget::Here => Ok(Found { netns: None, process: None }),
        AttachTarget::Netns(name) => match number_of_process(name) {
            Some(process) => of_process(process, &format!("--netns {process}")),
            None => {
                let netns = NetNs::open(&netns_path(name))
                    .with_context(|| format!("--netns {} (ip netns lists the names)", name.display()))?;
                Ok(Found { netns: Some(netns), process: None })
            }
        },
        AttachTarget::Process(process) => of_process(*process, &format!("--pid {process}")),
        AttachTarget::Container { name, engine } => {
            of_process(engine::process_of(name, *engine)?, &format!("--container {name}"))
        }
    }
}

impl Found {
    /// Refuses it if its inode is another one than the caller expects: a process number may have become
    /// another process's.
    pub(super) fn expect(self, inode: Option<u64>) -> Result<Self> {
        let Some(inode) = inode else { return Ok(self) };
        let netns = match &self.netns {
            Some(netns) => netns.id()?,
            None => NetNs::current()?.id()?,
        };
        ensure!(netns == inode, "--netns-inode {inode}: what is named is in network namespace {netns} now");
        Ok(self)
    }

    pub(super) fn process(&self) -> Option<u32> {
        self.process
    }

    /// Whether the name leads here still. It can't lead to another namespace with the same inode, because
    /// this one is held open. Only names of `ip netns` are asked.
    pub(super) fn is_still(&self, target: &AttachTarget) -> bool {
        let (AttachTarget::Netns(name), Some(netns), None) = (target, &self.netns, self.process) else {
            return true;
        };
        let now = NetNs::open(&netns_path(name)).ok().and_then(|netns| netns.id().ok());
        now.is_some() && now == netns.id().ok()
    }

    /// Runs the work in this namespace. It gets the process, if one is known.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce(Option<u32>) -> Result<T> + Send) -> Result<T> {
        match &self.netns {
            None => work(self.process),
            Some(netns) => netns.run(|| work(self.process))?,
        }
    }
}

/// The namespace of a container's process must be its own: else all servers of this host would be affected.
fn of_process(process: u32, option: &str) -> Result<Found> {
    let path = PathBuf::from(format!("/proc/{process}/ns/net"));
    let netns = NetNs::open(&path).with_context(|| match path.try_exists() {
        Ok(false) => format!("{option}: there is no such process; pidof -s PROGRAM tells the number of one"),
        _ => format!("{option}: its network namespace can't be opened"),
    })?;
    let id = netns.id().context("the network namespace")?;
    // In a container or behind `ip netns exec`, the host's is not this process's own but that of process 1.
    let of_host = NetNs::open(Path::new("/proc/1/ns/net")).ok().and_then(|host| host.id().ok());
    ensure!(
        id != NetNs::current()?.id()? && Some(id) != of_host,
        "{option}: process {process} uses this host's own network namespace (host networking); leave the option out to attach to that"
    );
    Ok(Found { netns: Some(netns), process: Some(process) })
}

/// Network namespaces are named as in ip-netns(8).
fn netns_path(name: &Path) -> PathBuf {
    if name.components().count() > 1 { name.to_owned() } else { Path::new("/run/netns").join(name) }
}

/// A number is a process, as in ip-link(8), unless a namespace has that name.
fn number_of_process(name: &Path) -> Option<u32> {
    let number = name.to_str()?.parse().ok()?;
    (!netns_path(name).exists()).then_some(number)
}
