//! Devices that come after the start get the programs for sessions and flows that leave user space: new ones,
//! those that are made anew or come back, and those that get their first address. In the pins keeper.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tracing::{debug, info};
use truepeer_bpf::{Device, Followed, Follower};
use truepeer_sys::notices::{Family, Notices, word};
use truepeer_udp_offload::FlowTable;

use truepeer_attach::devices_in_use;

/// linux/rtnetlink.h: RTM_DELLINK; AF_BRIDGE; bits of RTMGRP_*: devices, and addresses of both families.
const DELETED: u16 = 17;
const BRIDGE: u8 = 7;
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8;
/// A new device is up, has its address or is a port of a bridge some moments after it was made: one look is
/// enough for all of that.
const SETTLE: Duration = Duration::from_millis(100);
/// The longest pause in seconds before it tries again what has failed; the first one is a second.
const MOST: u32 = 5;

/// Devices in use whose packets the programs can read: with an Ethernet header, which loopback has, too.
pub(super) fn usable_devices() -> anyhow::Result<Vec<Device>> {
    let mut devices = devices_in_use()?;
    devices.retain(|device| device.has_ethernet);
    Ok(devices)
}

/// Follows the devices until `end` is readable.
pub(super) fn follow(sessions: Option<&Follower>, flows: Option<&FlowTable>, end: BorrowedFd<'_>) {
    let Ok(mut notices) = Notices::of(Family::Route, GROUPS) else { return };
    if let Some(flows) = flows {
        flows.begin_to_follow();
    }
    let mut failures = 0;
    // Looks at once: no notice comes of devices that have changed since the start.
    let mut pause = Some(Duration::ZERO);
    loop {
        is_readable(&[end, notices.as_fd()], pause);
        if is_readable(&[end], Some(SETTLE)) {
            return;
        }
        // Where some were lost, a device that was made anew by its number has no programs for flows.
        notices.read(|message| {
            let is_deleted = message.kind == DELETED && message.body.first() != Some(&BRIDGE);
            let gone = word(message.body, 4).filter(|_| is_deleted);
            if let (Some(flows), Some(gone)) = (flows, gone) {
                flows.leave(gone);
            }
        });
        pause = match look(sessions, flows) {
            Ok(true) => None,
            Ok(false) => Some(Duration::ZERO),
            Err(failure) => {
                debug!("--splice: a device has no programs yet: {failure:#}");
                Some(Duration::from_secs(MOST.min(failures + 1).into()))
            }
        };
        failures = pause.map_or(0, |_| failures.saturating_add(1));
    }
}

/// False: another process is at it, so look again.
fn look(sessions: Option<&Follower>, flows: Option<&FlowTable>) -> anyhow::Result<bool> {
    let devices = usable_devices()?;
    let of_flows = flows.map(|flows| flows.attach_later(&devices)).transpose();
    let of_sessions = sessions.map(|sessions| sessions.attach(&devices)).transpose()?;
    let mut all: BTreeSet<String> = of_flows.iter().flatten().flatten().cloned().collect();
    let (mut is_done, mut failed) = (true, None);
    match of_sessions {
        Some(Followed::Attached(attached, failure)) => {
            all.extend(attached);
            failed = failure;
        }
        Some(Followed::Busy) => is_done = false,
        None => {}
    }
    // Before Linux 6.6 they are attached again everywhere.
    if !all.is_empty() && truepeer_bpf::has_tcx() {
        let all: Vec<_> = all.into_iter().collect();
        info!("sessions may leave user space, on {}, too", all.join(", "));
    }
    of_flows?;
    failed.map_or(Ok(is_done), |failure| Err(failure.into()))
}

/// Whether one of these is readable before the time is over.
fn is_readable(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    matches!(retry_on_intr(|| poll(&mut polled, limit.as_ref())), Ok(1..))
}
