//! Loads the programs that translate the packets of sessions, before the process gives up its capabilities.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use tracing::{debug, info, warn};
use truepeer_bpf::{AttachError, Device, Splices};
use truepeer_relay::Ways;

use super::full::FullListeners;
use truepeer_attach::devices_in_use;
use truepeer_config::plan::{EntryConfig, ListenerConfig, ProcessConfig};
use truepeer_config::spec::defaults::SPLICE_PINS as PINS;

/// docs/internals/splice.md says how much memory they take.
const FLOWS: NonZeroU32 = NonZeroU32::new(65536).expect("not zero");

/// The kernel's programs that listeners may use.
#[derive(Default)]
pub(super) struct Programs {
    /// If no listener wants to splice: the tables of an earlier process, if there are any.
    pub(super) splices: Option<Arc<Splices>>,
    pub(super) full: Option<FullListeners>,
    /// Opened with the programs: a confined process can't list IPsec policies.
    pub(super) ways: Option<Arc<Ways>>,
}

/// Loads the programs that the listeners want. If that fails, it logs the reason, and sessions are relayed.
pub(super) fn load(process: &ProcessConfig, is_upgrade: bool) -> Programs {
    warn_of_marks(process);
    if !is_wanted(process) {
        let splices = left_behind();
        let ways = splices.as_ref().map(|_| Arc::new(Ways::open()));
        return Programs { splices, full: None, ways };
    }
    match attach(is_upgrade) {
        Ok((splices, devices)) => {
            let full =
                wants_full(process).then(|| FullListeners::attach(&splices, Path::new(PINS), &devices));
            let full = full.transpose().unwrap_or_else(|failure| {
                warn!("--splice full: {failure:#}; until the next start it is as auto");
                None
            });
            if full.is_some() {
                warn!(
                    "--splice full is experimental and not for production: docs/splice.md, \"Sessions that the kernel makes\", says what is open"
                );
            }
            Programs { splices: Some(splices), full, ways: Some(Arc::new(Ways::open())) }
        }
        Err(failure) if matches!(failure.downcast_ref(), Some(AttachError::OtherLayout { .. })) => {
            warn!(
                "--splice: {PINS} is of another version of truepeer. Its sessions go on in the kernel, but this version can't list or end them. \
                 Until then sessions are relayed. To end them: rm -r {PINS}, then restart truepeer"
            );
            Programs::default()
        }
        Err(failure) => {
            warn!("--splice: {failure:#}; sessions are relayed");
            Programs::default()
        }
    }
}

fn listeners(process: &ProcessConfig) -> impl Iterator<Item = &ListenerConfig> {
    process.entries.iter().flat_map(|entry| match entry {
        EntryConfig::Proxy(config) => config.listeners.as_slice(),
        EntryConfig::Https(_) | EntryConfig::Attach(_) => &[],
    })
}

pub(super) fn is_wanted(process: &ProcessConfig) -> bool {
    listeners(process).any(|one| one.splice_after().is_some())
}

fn wants_full(process: &ProcessConfig) -> bool {
    listeners(process).any(|listener| listener.splice_full() == Some(Ok(())))
}

fn warn_of_marks(process: &ProcessConfig) {
    for listener in listeners(process).filter(|one| one.wants_splice() && one.mark != 0) {
        warn!(
            "--splice: sessions of {} are relayed, because translated packets don't have its --mark",
            listener.bind
        );
    }
}

/// A reload loads no programs, because the process has given up the privileges for that.
pub(super) fn warn_of_reload(process: &ProcessConfig, is_loaded: bool, is_full_loaded: bool) {
    warn_of_marks(process);
    if is_loaded && !is_full_loaded && wants_full(process) {
        warn!(
            "--splice full: the kernel's programs for it are loaded at the next start; until then it is as auto"
        );
    }
    if is_wanted(process) && !is_loaded {
        warn!(
            "--splice: the kernel's programs are loaded at the next start; until then sessions are relayed"
        );
    }
}

/// The tables of an earlier process: its sessions may go on, and their clients' addresses are not free.
fn left_behind() -> Option<Arc<Splices>> {
    if !truepeer_bpf::are_built_in() {
        return None;
    }
    Splices::visit(Path::new(PINS)).unwrap_or_else(|failure| {
        match failure {
            AttachError::Untrusted { .. } => {
                warn!("what an earlier process has left is not looked at: {failure}")
            }
            _ => debug!("what an earlier process has left at {PINS}: {failure}"),
        }
        None
    })
}

fn attach(is_upgrade: bool) -> anyhow::Result<(Arc<Splices>, Vec<Device>)> {
    ensure!(truepeer_bpf::are_built_in(), "this truepeer was built without the kernel's programs");
    let mut devices = devices_in_use()?;
    devices.retain(|device| device.has_ethernet);
    ensure!(!devices.is_empty(), "no Ethernet or loopback device here is up and has an address");
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    let attach = if is_upgrade { Splices::attach_as_heir } else { Splices::attach };
    let splices = attach(Path::new(PINS), &devices, FLOWS).context("can't load the programs")?;
    info!("sessions may leave user space, on {}", names.join(", "));
    Ok((splices, devices))
}
