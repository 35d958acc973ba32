//! Loads the programs that translate the packets of sessions, before the process gives up its capabilities.

use std::error::Error;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::Chain;
use rustix::io::Errno;
use tracing::{debug, info, warn};
use truepeer_bpf::{AttachError, Device, Splices, find_splice_pins, make_splice_pins};
use truepeer_relay::{StaysReason as Reason, Ways};
use truepeer_udp_offload::{FlowTable, LoadError};

use super::follow::{follow, usable_devices};
use truepeer_config::plan::{EntryConfig, ListenerConfig, ProcessConfig};
use truepeer_ops::admin::SpliceDoc;
use truepeer_privilege::confine::Plan;
use truepeer_privilege::confine::needs::{SPLICE_BPF, SPLICE_NET, SPLICE_PERFMON};
use truepeer_privilege::keeper::PinsKeeper;

/// docs/internals/splice.md says how much memory they take.
const FLOWS: NonZeroU32 = NonZeroU32::new(65536).expect("not zero");
/// The longest text of an obstacle: the verifier's output may be long.
const LONGEST: usize = 300;

/// The programs for UDP flows, and the ways of their packets.
type FlowPrograms = (Arc<FlowTable>, Arc<Ways>);

/// The kernel's programs that listeners may use.
#[derive(Default)]
pub(super) struct Programs {
    /// With an obstacle: the tables of an earlier or another process, if there are any. Their clients'
    /// addresses are not free.
    pub(super) splices: Option<Arc<Splices>>,
    /// Opened with the programs: a confined process can't list IPsec policies.
    pub(super) ways: Option<Arc<Ways>>,
    /// The devices whose packets the programs see.
    pub(super) devices: Option<String>,
    pub(super) obstacle: Option<Obstacle>,
    /// For UDP flows; `None`: no listener wanted them.
    pub(super) flows: Option<Result<FlowPrograms, Obstacle>>,
}

/// What is pinned is removed when this is dropped, if nobody uses it. Drop it after the tables.
pub(super) struct Pins {
    /// The process that may do that; `None`: this one.
    keeper: Option<PinsKeeper>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.keeper.take().is_none() {
            remove_unused();
        }
    }
}

impl Programs {
    /// `plan`: of a process that has not given up its user yet.
    pub(super) fn pins(&self, plan: &mut Plan<'_>) -> Option<Pins> {
        let splices = self.splices.as_ref();
        let flows = self.flows.as_ref().and_then(|flows| Some(&flows.as_ref().ok()?.0));
        if splices.is_none() && flows.is_none() {
            return None;
        }
        let sessions = splices.filter(|_| self.devices.is_some()).and_then(|splices| splices.follower());
        let kept = flows.map_or_else(Vec::new, |flows| flows.descriptors());
        let follow = |line: BorrowedFd<'_>| follow(sessions.as_ref(), flows.map(Arc::as_ref), line);
        let remove = || _ = splices.map(|splices| splices.remove_unused());
        let pins = find_splice_pins();
        let keeper = plan.start_pins_keeper(&pins, truepeer_bpf::has_tcx(), &kept, follow, remove);
        Some(Pins { keeper })
    }
}

fn remove_unused() {
    if !truepeer_bpf::are_built_in() {
        return;
    }
    if let Err(failure) = truepeer_bpf::remove_unused(&find_splice_pins()) {
        debug!("--splice: what is pinned stays: {failure}");
    }
}

/// Why no session leaves user space. That is no word in the log: sessions are relayed, each is counted by the
/// reason, and `truepeer status` tells it.
#[derive(Debug, Clone)]
pub(super) struct Obstacle {
    pub(super) reason: Reason,
    found: String,
}

/// Loads the programs that the listeners want. If that fails, sessions and flows are relayed.
pub(super) fn load(process: &ProcessConfig, is_upgrade: bool) -> Programs {
    let are_flows_wanted = listeners(process).any(ListenerConfig::may_offload_flows);
    Programs { flows: are_flows_wanted.then(load_for_flows), ..load_for_sessions(process, is_upgrade) }
}

/// Nothing is pinned: an upgrade's new process has programs of its own.
fn load_for_flows() -> Result<FlowPrograms, Obstacle> {
    let attached =
        devices().and_then(|devices| FlowTable::attach(&devices).map_err(|failure| Obstacle::of(&failure)));
    let table = attached.inspect_err(|obstacle| debug!("--splice: {}; flows are relayed", obstacle.found))?;
    Ok((table, Arc::new(Ways::of_udp())))
}

fn load_for_sessions(process: &ProcessConfig, is_upgrade: bool) -> Programs {
    if !is_wanted(process) {
        let found = "no listener wanted it when truepeer started: restart it";
        return relaying(Obstacle::new(Reason::NotLoaded, found));
    }
    match attach(is_upgrade) {
        Ok((splices, devices)) => Programs {
            splices: Some(splices),
            ways: Some(Arc::new(Ways::open())),
            devices: Some(devices),
            obstacle: None,
            flows: None,
        },
        Err(obstacle) => {
            debug!("--splice: {}; sessions are relayed", obstacle.found);
            relaying(obstacle)
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
    listeners(process).any(ListenerConfig::may_splice)
}

/// A reload loads no programs, because the process has given up the privileges for that. `was_wanted`: it has
/// tried at the start.
pub(super) fn tell_of_reload(process: &ProcessConfig, was_wanted: bool) {
    if is_wanted(process) && !was_wanted {
        info!(
            "--splice: the kernel's programs are loaded at the next start; until then sessions are relayed"
        );
    }
}

fn relaying(obstacle: Obstacle) -> Programs {
    // What an earlier process has left without sessions, or this one before a step failed.
    remove_unused();
    let splices = left_behind();
    let ways = splices.as_ref().map(|_| Arc::new(Ways::open()));
    Programs { splices, ways, devices: None, obstacle: Some(obstacle), flows: None }
}

/// The tables of an earlier or another process: its sessions may go on, and their clients' addresses are not
/// free.
fn left_behind() -> Option<Arc<Splices>> {
    if !truepeer_bpf::are_built_in() {
        return None;
    }
    let pins = find_splice_pins();
    Splices::visit(&pins).unwrap_or_else(|failure| {
        match failure {
            AttachError::Untrusted { .. } => {
                warn!("what an earlier process has left is not looked at: {failure}")
            }
            _ => debug!("what an earlier process has left at {}: {failure}", pins.display()),
        }
        None
    })
}

/// Also returns the devices' names.
fn attach(is_upgrade: bool) -> Result<(Arc<Splices>, String), Obstacle> {
    let devices = devices()?;
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    let attach = if is_upgrade { Splices::attach_as_heir } else { Splices::attach };
    let splices = attach(&make_splice_pins(), &devices, FLOWS).map_err(|failure| Obstacle::of(&failure))?;
    Ok((splices, names.join(", ")))
}

/// The devices for programs that this process can load.
fn devices() -> Result<Vec<Device>, Obstacle> {
    if !truepeer_bpf::are_built_in() {
        return Err(Obstacle::new(Reason::NotBuilt, "this truepeer was built without clang"));
    }
    let needs = [SPLICE_BPF, SPLICE_PERFMON, SPLICE_NET];
    let missing: Vec<_> =
        needs.iter().filter(|need| !need.is_held()).map(|need| need.first().to_string()).collect();
    if !missing.is_empty() {
        return Err(Obstacle::new(Reason::NoPrivileges, format!("missing: {}", missing.join(", "))));
    }
    let unknown = |failure: anyhow::Error| Obstacle::new(Reason::NotLoaded, format!("{failure:#}"));
    let devices = usable_devices().map_err(unknown)?;
    if devices.is_empty() {
        let found = "no Ethernet or loopback device here was up and had an address";
        return Err(Obstacle::new(Reason::NoDevice, found));
    }
    Ok(devices)
}

impl Obstacle {
    fn new(reason: Reason, found: impl Into<String>) -> Self {
        Self { reason, found: found.into() }
    }

    fn of(failure: &(dyn Error + 'static)) -> Self {
        let refused = |errno: Errno| {
            let mut found = Chain::new(failure).filter_map(|error| error.downcast_ref::<io::Error>());
            found.any(|error| error.raw_os_error() == Some(errno.raw_os_error()))
        };
        let reason = match failure.downcast_ref() {
            Some(AttachError::TablesTaken) => Reason::OtherTruepeer,
            Some(AttachError::OtherLayout { .. }) => Reason::OtherVersion,
            Some(AttachError::NoBpfFilesystem { .. }) => Reason::NoBpfFilesystem,
            _ if matches!(failure.downcast_ref(), Some(LoadError::OldKernel)) => Reason::OldKernel,
            _ if matches!(failure.downcast_ref(), Some(LoadError::NotBuilt)) => Reason::NotBuilt,
            // The verifier says EACCES, too.
            Some(AttachError::File { .. }) if refused(Errno::ACCESS) => Reason::NoPrivileges,
            _ if refused(Errno::PERM) => Reason::NoPrivileges,
            _ => Reason::NotLoaded,
        };
        let found = match failure.downcast_ref() {
            Some(AttachError::OtherLayout { .. }) => {
                let pins = find_splice_pins();
                let pins = pins.display();
                format!(
                    "{pins} is of another version of truepeer; its sessions go on in the kernel, and this version can't list or end them; \
                     to end them: rm -r {pins}, then restart truepeer"
                )
            }
            _ => Chain::new(failure).map(ToString::to_string).collect::<Vec<_>>().join(": "),
        };
        let found = found.lines().next().unwrap_or_default().chars().take(LONGEST).collect();
        Self { reason, found }
    }

    pub(super) fn shown(&self) -> SpliceDoc {
        SpliceDoc { reason: Some(self.reason.label().to_owned()), found: Some(self.found.clone()) }
    }
}
