//! Duplicates the socket that a call is about.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use truepeer_sys::process::{Reach, descriptor_of};
use truepeer_sys::seccomp::{Answer, Notification, Notifier, calls};

use super::journal::SupervisorLog;

/// Duplicates the descriptor in the call's first argument. On failure the call has been answered.
pub(super) fn descriptor_for(
    call: &Notification,
    notifier: &Notifier,
    journal: &mut SupervisorLog,
) -> Option<OwnedFd> {
    let answer = match descriptor_of(call.thread, call.int(0)) {
        // The descriptor was duplicated by thread id. The id belongs to the caller as long as its call waits.
        Ok(socket) => return notifier.is_waiting(call.id).then_some(socket),
        Err(Reach::NoDescriptor) => Answer::Fail(Errno::BADF),
        Err(Reach::NoThread) if !notifier.is_waiting(call.id) => return None,
        Err(Reach::NoThread) => refusal(call, Errno::SRCH, journal),
        Err(Reach::Forbidden(errno @ (Errno::MFILE | Errno::NFILE))) => {
            journal.on_trouble("out of descriptors", &errno);
            Answer::Fail(errno)
        }
        Err(Reach::Forbidden(errno)) => refusal(call, errno, journal),
    };
    if let Err(error) = notifier.send(call.id, answer) {
        journal.on_trouble("can't answer a call", &error);
    }
    None
}

/// The call must not continue: the program would take the header for data, and the sender for the client.
fn refusal(call: &Notification, errno: Errno, journal: &mut SupervisorLog) -> Answer {
    journal.on_unreachable(call.thread, errno);
    // On this error servers pause. On EPERM they would call accept() again in a tight loop.
    let is_accept = matches!(call.call, calls::ACCEPT | calls::ACCEPT4);
    Answer::Fail(if is_accept { Errno::NFILE } else { Errno::PERM })
}
