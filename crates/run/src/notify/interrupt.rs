//! Signals for a thread whose `accept` is parked.
//!
//! While a call is being answered, only fatal signals interrupt it. Otherwise an interrupted call would lose
//! the descriptor that was installed for it. But a blocking `accept` would then ignore Ctrl-C, a SIGTERM
//! handler and SIGSTOP. So the supervisor checks now and then whether a signal is pending for the thread, and
//! lets the call return if so.

use std::fs;
use std::time::Instant;

use rustix::io::Errno;
use truepeer_sys::seccomp::{Answer, Notification, Notifier};

/// Whether a parked call goes on waiting: it was not killed, its time is not up (or it fails with `late`),
/// and there is no signal for it.
pub(super) fn still_waits(
    notifier: &Notifier,
    call: &Notification,
    deadline: Option<Instant>,
    late: Errno,
    now: Instant,
) -> bool {
    if !notifier.is_waiting(call.id) {
        return false;
    }
    match ended(notifier, call, deadline, late, now) {
        Some(answer) => notifier.send(call.id, answer).is_err(),
        None => true,
    }
}

/// How a parked call has to be answered, if its time is up (`late`) or there is a signal for it. With a limit
/// to its time the kernel doesn't begin it again (signal(7)).
fn ended(
    notifier: &Notifier,
    call: &Notification,
    deadline: Option<Instant>,
    late: Errno,
    now: Instant,
) -> Option<Answer> {
    if deadline.is_some_and(|deadline| deadline <= now) {
        return Some(Answer::Fail(late));
    }
    // Its number is still its own: looked at between two questions whether it waits.
    let answer = answer_for(call.thread).filter(|_| notifier.is_waiting(call.id))?;
    Some(if deadline.is_some() { Answer::Fail(Errno::INTR) } else { answer })
}

/// How a parked call of this thread has to be answered because of a signal, if one is there.
fn answer_for(thread: i32) -> Option<Answer> {
    interrupted(&fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
}

/// By the text of `/proc/THREAD/status`.
///
/// A signal for this very thread, or one for the process that the kernel gives to its first thread, is
/// certain to be handled before the call returns: the kernel may begin the call again, by SA_RESTART. Any
/// other signal for the process may be another thread's by then, so that the call fails with EINTR, which it
/// always may.
fn interrupted(status: &str) -> Option<Answer> {
    let of_thread = set(status, "SigPnd:")?;
    let of_process = set(status, "ShdPnd:")?;
    let blocked = set(status, "SigBlk:")?;
    if of_thread & !blocked != 0 {
        return Some(Answer::Interrupted);
    }
    if of_process & !blocked == 0 {
        return None;
    }
    let is_first = field(status, "Pid:")? == field(status, "Tgid:")?;
    Some(if is_first { Answer::Interrupted } else { Answer::Fail(Errno::INTR) })
}

/// Whether a signal is pending that interrupts the thread.
pub(super) fn has_a_signal(thread: i32) -> bool {
    answer_for(thread).is_some()
}

/// Whether a signal is pending that the thread blocks.
pub(super) fn holds_a_signal_back(thread: i32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| held_back(&status) == Some(true))
}

fn held_back(status: &str) -> Option<bool> {
    let pending = set(status, "SigPnd:")? | set(status, "ShdPnd:")?;
    Some(pending & set(status, "SigBlk:")? != 0)
}

fn set(status: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(field(status, name)?, 16).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pid: i32, thread: u64, process: u64, blocked: u64) -> String {
        format!(
            "Name:\tx\nTgid:\t7\nPid:\t{pid}\nSigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\n\
            SigBlk:\t{blocked:016x}\n"
        )
    }

    #[test]
    fn pending_signals_interrupt_unless_blocked() {
        let int = 1 << 1;
        assert_eq!(interrupted(&status(7, 0, 0, 0)), None);
        assert_eq!(interrupted(&status(7, 0, int, 0)), Some(Answer::Interrupted));
        assert_eq!(interrupted(&status(8, 0, int, 0)), Some(Answer::Fail(Errno::INTR)));
        assert_eq!(interrupted(&status(8, int, 0, 0)), Some(Answer::Interrupted));
        assert_eq!(interrupted(&status(7, int, int, int)), None);
        assert_eq!(interrupted("Name:\tx\n"), None);
    }

    #[test]
    fn what_is_blocked_is_held_back() {
        let int = 1 << 1;
        assert_eq!(held_back(&status(7, 0, int, int)), Some(true));
        assert_eq!(held_back(&status(7, int, 0, int)), Some(true));
        assert_eq!(held_back(&status(7, int, int, 1 << 2)), Some(false));
        assert_eq!(held_back("Name:\tx\n"), None);
    }

    #[test]
    fn this_thread_has_none() {
        assert_eq!(answer_for(rustix::thread::gettid().as_raw_nonzero().get()), None);
    }
}
