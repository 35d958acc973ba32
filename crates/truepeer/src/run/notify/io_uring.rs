//! io_uring makes calls that no filter sees.

use std::fs;

use rustix::io::Errno;
use truepeer_sys::seccomp::{Answer, Notification};

/// For programs that make connections. One that has the library may use io_uring, as by preload; its connect() through
/// it is not seen. Any other gets ENOSYS, and falls back to epoll.
pub(super) fn answer_to_io_uring(call: &Notification) -> Answer {
    let maps = fs::read_to_string(format!("/proc/{}/maps", call.thread));
    let has_library = maps.is_ok_and(|maps| maps.contains("/libtruepeer"));
    if has_library { Answer::GoOn } else { Answer::Fail(Errno::NOSYS) }
}
