//! The library's messages on standard error: one line at a time, the same complaint once a minute.

use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::env;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::time::{ClockId, clock_gettime};
use truepeer_handover::{LockFreeComplaints, Refused};

use crate::advice;

static VERBOSE: AtomicBool = AtomicBool::new(false);
static COMPLAINTS: LockFreeComplaints = LockFreeComplaints::new();

pub(crate) fn set_verbose(on: bool) {
    VERBOSE.store(on, Ordering::Relaxed);
}

/// Logs a connection, if the settings ask for it.
pub(crate) fn in_detail(text: fmt::Arguments<'_>) {
    if VERBOSE.load(Ordering::Relaxed) {
        always(text);
    }
}

/// Logs why a connection was refused, except for normal endings.
pub(crate) fn refusal(refused: &Refused) {
    match refused.complaint() {
        Some(reason) => {
            let advice = advice::of(refused).unwrap_or_default();
            complaint(reason, refused.sender().map(|sender| sender.ip()), format_args!("{refused}{advice}"));
        }
        None => in_detail(format_args!("{refused}")),
    }
}

/// Logs the same message about the same host at most once a minute.
pub(crate) fn complaint(reason: &str, about: Option<IpAddr>, text: fmt::Arguments<'_>) {
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::try_from(now).unwrap_or_default();
    match COMPLAINTS.may_say(reason, about, now) {
        Some(0) => always(text),
        Some(held_back) => always(format_args!("{text} ({held_back} more like it were not logged)")),
        None => {}
    }
}

/// Removes the setting, so that programs executed by this one don't log it again.
pub(crate) fn once_in_a_family(text: fmt::Arguments<'_>) {
    if env::var_os("TRUEPEER_FAMILY").is_none() {
        always(text);
    }
}

/// Writes a line at once. Without a reader, a write would raise SIGPIPE, which ends the program; with one
/// that doesn't read, it would block the program. Then the line is lost.
pub(crate) fn always(text: fmt::Arguments<'_>) {
    // If the program has closed standard error, the calls below fail.
    let stderr = rustix::stdio::stderr();
    let is_anothers = |kind: FileType| {
        kind == FileType::Socket
            && truepeer_sys::marked::getpeername(stderr).is_ok_and(|peer| {
                // A daemon's standard error may be a unix socket of the journal. An internet socket under
                // this number is a client's connection.
                peer.is_some_and(|peer| peer.address_family() != rustix::net::AddressFamily::UNIX)
            })
    };
    let mut asked = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    let takes = poll(&mut asked, Some(&Timespec::default())).is_ok() && asked[0].revents() == PollFlags::OUT;
    if takes && fstat(stderr).is_ok_and(|stat| !is_anothers(FileType::from_raw_mode(stat.st_mode))) {
        // No other place to report the failure.
        let _ = rustix::io::write(stderr, format!("truepeer: {text}\n").as_bytes());
    }
}
