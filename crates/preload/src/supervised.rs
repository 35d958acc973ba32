//! The supervisor beside this program, which serves the programs of the family that lack this library.
//!
//! The library marks its own calls, so that the supervisor does not answer them. Calls that bypass the
//! library (system calls made directly) are unmarked.

use core::sync::atomic::{AtomicI32, Ordering};
use std::env;

use rustix::process::{PTracer, Pid, set_ptracer};
use rustix::thread::{SecureComputingMode, secure_computing_mode};
use truepeer_sys::marked;

/// The supervisor's process. `truepeer run` and `connect` set it.
const VARIABLE: &str = "TRUEPEER_SUPERVISOR";

static SUPERVISOR: AtomicI32 = AtomicI32::new(0);

/// Call it while the library is loaded.
pub(crate) fn begin() {
    let number = env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
    // The variable alone may come from a process of another family (a saved environment): then there is no
    // filter.
    if let Some(number) = number
        && secure_computing_mode() == Ok(SecureComputingMode::Filter)
    {
        marked::begin();
        SUPERVISOR.store(number, Ordering::Relaxed);
        admit();
    }
}

/// The supervisor's process; 0 without one.
pub(crate) fn supervisor() -> i32 {
    SUPERVISOR.load(Ordering::Relaxed)
}

/// Whether there is one.
pub(crate) fn is_supervised() -> bool {
    SUPERVISOR.load(Ordering::Relaxed) != 0
}

/// Call it in a forked child: the permission is not inherited. A program that the child executes keeps it.
pub(crate) fn on_fork() {
    admit();
}

/// Where Yama lets a process inspect only its descendants, this lets the supervisor inspect this one.
fn admit() {
    if let Some(supervisor) = Pid::from_raw(supervisor()) {
        // EINVAL without Yama: then no permission is needed.
        let _ = set_ptracer(PTracer::ProcessID(supervisor));
    }
}
