//! Keeps the program from io_uring, through which connections are accepted and made without the C library:
//! `--allow` would not be enforced, and headers would be data. Servers fall back to epoll. With a supervisor,
//! its filter does so.

use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, secure_computing_mode};
use truepeer_sys::seccomp::{Filter, ForeignCalls, SeccompAction, calls};

use crate::abi::{by_kernel, last_errno};
use crate::role::role;
use crate::{say, supervised};

/// Call it once, when the library is loaded.
pub(crate) fn refuse() {
    let foreign = match role() {
        Some(role) if role.accepting.is_some() => ForeignCalls::ACCEPTING,
        Some(role) if role.sending.is_some() => ForeignCalls::CONNECTING,
        _ => return,
    };
    if supervised::is_supervised() || is_unavailable() {
        return;
    }
    let refused = SeccompAction::Fail(Errno::NOSYS);
    let filter = [calls::IO_URING_SETUP, calls::IO_URING_ENTER, calls::IO_URING_REGISTER]
        .into_iter()
        .fold(Filter::with_foreign(foreign, refused), |filter, call| filter.rule(call, refused));
    if let Err(error) = filter.apply() {
        say::always(format_args!(
            "can't start: connections that the program accepts or makes by io_uring can't be seen, and \
            io_uring can't be refused here ({error}): set kernel.io_uring_disabled=2, or use truepeer attach \
            or truepeer proxy"
        ));
        std::process::abort();
    }
}

/// The kernel lacks io_uring, or refuses it (kernel.io_uring_disabled). EFAULT: it has it, but there are no
/// parameters at that address. Not asked where there is a filter, which may kill whoever asks (systemd's
/// SystemCallFilter=).
fn is_unavailable() -> bool {
    if secure_computing_mode() != Ok(SecureComputingMode::Disabled) {
        return false;
    }
    by_kernel(calls::IO_URING_SETUP, [0; 6]) < 0 && last_errno().raw_os_error() != libc::EFAULT
}
