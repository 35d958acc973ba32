//! Attaches programs. A pinned link keeps its program attached. An upgrade replaces the program of the same
//! link, so that every packet meets exactly one.
//!
//! Before Linux 6.6 devices have no links (tcx). There a filter of the clsact qdisc is used, which stays by
//! itself.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact, qdisc_detach_program,
};
use aya::programs::{
    CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSockAddr, LinkOrder, SchedClassifier, SkLookup,
    SockOps, TcAttachType,
};
use aya::util::KernelVersion;

use crate::device::Device;
use crate::error::{AttachError, Cause};
use crate::pinned_link::{Holds, holds, is_at};
use crate::place::{Place, entries, unlink};

const HANDLE: TcHandle = TcHandle::new(0, 1);

/// A program of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) direction: TcAttachType,
    /// Its filter's priority among those of the clsact qdisc.
    priority: u16,
}

const fn stage(name: &'static str, direction: TcAttachType, priority: u16) -> Stage {
    Stage { name, direction, priority }
}

pub(crate) const TCP_INGRESS: Stage = stage("tcp_ingress", TcAttachType::Ingress, 50);
pub(crate) const TCP_EGRESS: Stage = stage("tcp_egress", TcAttachType::Egress, 50);
pub(crate) const UDP_INGRESS: Stage = stage("udp_ingress", TcAttachType::Ingress, 51);
pub(crate) const UDP_EGRESS: Stage = stage("udp_egress", TcAttachType::Egress, 51);
pub(crate) const SPLICE_IN: Stage = stage("splice_in", TcAttachType::Ingress, 52);
pub(crate) const SPLICE_OUT: Stage = stage("splice_out", TcAttachType::Egress, 52);
/// Those of `attach`.
pub(crate) const STAGES: [Stage; 4] = [TCP_INGRESS, TCP_EGRESS, UDP_INGRESS, UDP_EGRESS];
/// Those of sessions that leave user space.
pub(crate) const OF_SPLICE: [Stage; 2] = [SPLICE_IN, SPLICE_OUT];

/// Whether devices support links here (Linux 6.6). Without, filters stay until somebody removes them.
pub fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

fn pin_of(place: &Place, program: &str, device: u32) -> PathBuf {
    place.links().join(format!("{program}-{device}"))
}

/// The index of the device that a pinned link is attached to; `None` if the link is not on a device.
pub(crate) fn device_of_pin(pin: &Path) -> Option<u32> {
    let (program, device) = pin.file_name()?.to_str()?.rsplit_once('-')?;
    let mut stages = STAGES.iter().chain(&OF_SPLICE);
    stages.any(|stage| stage.name == program).then(|| device.parse().ok())?
}

/// Pins a program in place of an older one, for devices that come later.
pub(crate) fn pin_program(
    place: &Place,
    program: &mut SchedClassifier,
    stage: Stage,
) -> Result<(), AttachError> {
    let (pin, new) = (place.hook(stage.name), place.hook(&format!("{}-new", stage.name)));
    let _ = fs::remove_file(&new);
    let pinned = program.pin(&new).map_err(Cause::from).and_then(|()| Ok(fs::rename(&new, pin)?));
    pinned.map_err(AttachError::attach(stage.name, place.path().display()))
}

/// Attaches the pinned programs of these stages to the devices that lack them. Returns those, and the first
/// failure. Where devices have no links, none can be told to have them: they are attached again everywhere.
pub(crate) fn attach_pinned(
    place: &Place,
    stages: &[Stage],
    devices: &[Device],
) -> Result<(Vec<String>, Option<AttachError>), AttachError> {
    let (mut attached, mut failure) = (BTreeSet::new(), None);
    let have_links = has_tcx();
    for stage in stages {
        let to = |what| AttachError::attach(stage.name, what);
        let mut program = SchedClassifier::from_pin(place.hook(stage.name)).map_err(to("the kernel"))?;
        let id = program.info().map_err(to("the kernel"))?.id();
        for device in devices {
            let outcome = match index_of(&device.name) {
                Ok(index) if have_links && is_at(&pin_of(place, stage.name, index), index, id) => continue,
                Ok(_) => attach_to_device(place, &mut program, *stage, device),
                Err(gone) => Err(gone),
            };
            match outcome {
                Ok(()) => _ = attached.insert(device.name.clone()),
                Err(failed) => _ = failure.get_or_insert(failed),
            }
        }
    }
    Ok((attached.into_iter().collect(), failure))
}

/// Attaches a program to a device, and replaces an older one of truepeer.
pub(crate) fn attach_to_device(
    place: &Place,
    program: &mut SchedClassifier,
    stage: Stage,
    device: &Device,
) -> Result<(), AttachError> {
    let result = if has_tcx() {
        let index = index_of(&device.name)?;
        attach_tcx(program, stage.direction, device, &pin_of(place, stage.name, index))
    } else {
        attach_clsact(program, stage, device)
    };
    result.map_err(AttachError::attach(stage.name, &device.name))
}

fn attach_tcx(
    program: &mut SchedClassifier,
    direction: TcAttachType,
    device: &Device,
    pin: &Path,
) -> Result<(), Cause> {
    if let Ok(old) = PinnedLink::from_pin(pin) {
        let old = SchedClassifierLink::try_from(FdLink::from(old))?;
        if program.attach_to_link(old).is_ok() {
            return Ok(());
        }
        // The link of a device that is gone; its index belongs to another device now.
        fs::remove_file(pin)?;
    }
    let order = TcAttachOptions::TcxOrder(LinkOrder::default());
    let link = program.attach_with_options(&device.name, direction, order)?;
    pin_link(FdLink::try_from(program.take_link(link)?)?, pin)
}

fn attach_clsact(program: &mut SchedClassifier, stage: Stage, device: &Device) -> Result<(), Cause> {
    let Stage { direction, priority, .. } = stage;
    // Another program's qdisc serves as well. If there is none, attaching reports it.
    let _ = qdisc_add_clsact(&device.name);
    let old = SchedClassifierLink::attached(&device.name, direction, priority, HANDLE, None)?;
    let link = match program.attach_to_link(old) {
        Ok(link) => link,
        Err(_) => {
            let options = NlOptions { priority, handle: HANDLE, classid: None };
            program.attach_with_options(&device.name, direction, TcAttachOptions::Netlink(options))?
        }
    };
    // Dropping it would detach it; the kernel keeps the filter without this process.
    std::mem::forget(program.take_link(link)?);
    Ok(())
}

/// Removes the programs from devices that are no longer selected, and from all devices for protocols that
/// have no port any more.
pub(crate) fn detach_others(place: &Place, wanted: &[Device], stages: &[Stage]) -> Result<(), AttachError> {
    let wanted: BTreeSet<PathBuf> = wanted
        .iter()
        .filter_map(|device| index_of(&device.name).ok())
        .flat_map(|index| stages.iter().map(move |stage| pin_of(place, stage.name, index)))
        .collect();
    let pins = entries(&place.links())?;
    unlink(pins.into_iter().filter(|pin| device_of_pin(pin).is_some() && !wanted.contains(pin)))
}

/// Removes all programs of devices but these, from every device.
pub(crate) fn detach_stages(place: &Place, wanted: &[Stage]) -> Result<(), AttachError> {
    let is_wanted = |pin: &PathBuf| {
        let name = pin.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        wanted.iter().any(|stage| name.rsplit_once('-').is_some_and(|(program, _)| program == stage.name))
    };
    let pins = entries(&place.links())?;
    unlink(pins.into_iter().filter(|pin| device_of_pin(pin).is_some() && !is_wanted(pin)))
}

/// The numbers of the devices whose packets are validated; `None` where devices have no links.
pub fn covered_devices(place: &Place) -> Result<Option<BTreeSet<u32>>, AttachError> {
    if !has_tcx() {
        return Ok(None);
    }
    let pins = entries(&place.links())?.into_iter().filter(|pin| !is_empty(pin));
    Ok(Some(pins.filter_map(|pin| device_of_pin(&pin)).collect()))
}

/// Whether the device of this pin's link is gone.
pub(crate) fn is_empty(pin: &Path) -> bool {
    holds(pin).is_ok_and(|state| state == Holds::Nothing)
}

/// Removes the filters of these programs from all devices, where devices have no links.
pub(crate) fn detach_clsact(stages: &[Stage]) {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    for device in devices.lines().skip(2).filter_map(|line| line.split(':').next()) {
        for stage in stages {
            // Most devices never had a filter.
            let _ = qdisc_detach_program(device.trim(), stage.direction, stage.name);
        }
    }
}

/// Removes a hook from its cgroup, if there is one.
pub(crate) fn detach_hook(place: &Place, name: &'static str) -> Result<(), AttachError> {
    unlink([place.hook(name)])
}

/// A program for a cgroup or a network namespace.
pub(crate) trait Hook {
    /// Attaches it. A link never replaces other links ("single" concerns attachments without a link).
    fn link(&mut self, to: &File) -> Result<FdLink, Cause>;
}

impl Hook for CgroupSkb {
    fn link(&mut self, cgroup: &File) -> Result<FdLink, Cause> {
        let link = self.attach(cgroup, CgroupSkbAttachType::Ingress, CgroupAttachMode::Single)?;
        Ok(self.take_link(link)?.try_into()?)
    }
}

impl Hook for SkLookup {
    fn link(&mut self, netns: &File) -> Result<FdLink, Cause> {
        let link = self.attach(netns)?;
        Ok(self.take_link(link)?.into())
    }
}

impl Hook for CgroupSockAddr {
    fn link(&mut self, cgroup: &File) -> Result<FdLink, Cause> {
        let link = self.attach(cgroup, CgroupAttachMode::Single)?;
        Ok(self.take_link(link)?.try_into()?)
    }
}

impl Hook for SockOps {
    fn link(&mut self, cgroup: &File) -> Result<FdLink, Cause> {
        let link = self.attach(cgroup, CgroupAttachMode::Single)?;
        Ok(self.take_link(link)?.try_into()?)
    }
}

/// Attaches a hook to a cgroup or a network namespace. For a moment the old and the new one both run, which
/// does no harm.
pub(crate) fn attach_hook(
    place: &Place,
    program: &mut impl Hook,
    name: &'static str,
    to: &Path,
) -> Result<(), AttachError> {
    let file = File::open(to).map_err(AttachError::file("open", to))?;
    let outcome = program.link(&file).and_then(|link| replace_pin(link, &place.hook(name)));
    outcome.map_err(AttachError::hook(name, to.display()))
}

/// The old link is removed when nothing refers to it any more, after the new one exists.
fn replace_pin(link: FdLink, pin: &Path) -> Result<(), Cause> {
    let new = pin.with_file_name(format!("{}-new", pin.file_name().unwrap_or_default().to_string_lossy()));
    let _ = fs::remove_file(&new);
    pin_link(link, &new)?;
    Ok(fs::rename(new, pin)?)
}

fn pin_link(link: FdLink, pin: &Path) -> Result<(), Cause> {
    Ok(link.pin(pin).map(drop)?)
}

/// The number of the device that has this name.
///
/// # Errors
/// There is none.
pub fn index_of(device: &str) -> Result<u32, AttachError> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    // As if_nametoindex(3) does, so that a confined process needs no other sockets.
    let ask = || netdevice::name_to_index(socket(AddressFamily::UNIX, SocketType::DGRAM, None)?, device);
    ask().map_err(|error| AttachError::file("looking up the device", device)(error.into()))
}
