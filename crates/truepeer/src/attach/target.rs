//! The network namespace that is named: of a container, a process, by its own name, or this one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use truepeer_sys::netns::NetNs;

use super::engine;
use crate::spec::AttachTarget;

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
    let netns = NetNs::open(&path).with_context(|| format!("{option}: there is no such process"))?;
    let is_ours = netns.id().context("the network namespace")? == NetNs::current()?.id()?;
    ensure!(
        !is_ours,
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
