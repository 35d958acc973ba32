//! Devices that come after the start get the programs for sessions that leave user space: new ones, those that
//! are made anew or come back, and those that get their first address. In the pins keeper.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tracing::{debug, info};
use truepeer_bpf::{Followed, Follower};
use truepeer_sys::notices::{Family, Notices};

use super::splice::usable_devices;

/// Bits of RTMGRP_* (linux/rtnetlink.h): devices, and addresses of both families.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8;
/// A new device is up, has its address or is a port of a bridge some moments after it was made: one look is
/// enough for all of that.
const SETTLE: Duration = Duration::from_millis(100);
/// The longest pause in seconds before it tries again what has failed; the first one is a second.
const MOST: u32 = 5;

/// Follows the devices until `end` is readable.
pub(super) fn follow(follower: &Follower, end: BorrowedFd<'_>) {
    let Ok(mut notices) = Notices::of(Family::Route, GROUPS) else { return };
    let mut failures = 0;
    // What has changed since the start is no notice.
    let mut pause = Some(Duration::ZERO);
    loop {
        if is_readable(&[end, notices.as_fd()], pause) && is_readable(&[end], Some(Duration::ZERO)) {
            return;
        }
        if is_readable(&[end], Some(SETTLE)) {
            return;
        }
        // Lost ones don't matter: it looks at all devices.
        notices.read(|_| ());
        pause = match look(follower) {
            Ok(Some(())) => None,
            Ok(None) => Some(Duration::ZERO),
            Err(failure) => {
                failures += 1;
                debug!("--splice: a device has no programs yet: {failure:#}");
                Some(Duration::from_secs(MOST.min(failures).into()))
            }
        };
        if pause.is_none() {
            failures = 0;
        }
    }
}

/// `None`: another process is at it.
fn look(follower: &Follower) -> anyhow::Result<Option<()>> {
    let Followed::Attached(devices, failure) = follower.attach(&usable_devices()?)? else { return Ok(None) };
    if !devices.is_empty() && truepeer_bpf::has_tcx() {
        info!("sessions may leave user space, on {}, too", devices.join(", "));
    }
    failure.map_or(Ok(Some(())), |failure| Err(failure.into()))
}

/// Whether one of these is readable before the time is over.
fn is_readable(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    matches!(retry_on_intr(|| poll(&mut polled, limit.as_ref())), Ok(1..))
}
