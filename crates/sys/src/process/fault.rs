//! The last line of a process that a fault ends.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write as _;
use std::io;
use std::os::fd::BorrowedFd;

use crate::error::{CallError, Named};

/// What the processor or abort(3) ends a process by.
const FAULTS: [(c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGABRT, "SIGABRT"),
];

/// From now on, a fault that ends this process first writes a line to standard error, with the thread's name
/// and the signal. It is meant for processes in which somebody else's code runs. The line takes the place of
/// the one that Rust's runtime writes when a stack overflows.
///
/// # Errors
/// None on Linux: these signals may be changed.
pub fn tell_of_faults() -> Result<(), CallError> {
    for (signal, _) in FAULTS {
        // SAFETY: a sigaction consists of integers and pointers that may be null, for which zeros are valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
        action.sa_sigaction = handler as *const () as usize;
        // Once: the next signal has its default action. On the stack that Rust's runtime sets aside for this.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
        // SAFETY: the handler has the arguments of SA_SIGINFO and makes only calls that signal-safety(7)
        // allows.
        let answer = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        if answer != 0 {
            return Err(io::Error::last_os_error()).named("sigaction");
        }
    }
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t.
    let info = unsafe { &*info };
    // Codes above 0 are the kernel's: a fault, which comes again once this returns. Others were sent.
    let is_sent = info.si_code <= 0;
    let mut line = FaultLine::default();
    let _ = line.compose(signal, is_sent, info);
    // SAFETY: a number other than -1 is borrowed for one write. If nothing is open there, that fails.
    let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) }, line.bytes());
    if is_sent {
        // SAFETY: raise(3) is allowed in handlers. The signal is blocked until this one returns.
        unsafe { libc::raise(signal) };
    }
}

/// A line in memory of its own: a handler must not allocate.
struct FaultLine {
    text: [u8; 160],
    length: usize,
}

impl Default for FaultLine {
    fn default() -> Self {
        Self { text: [0; 160], length: 0 }
    }
}

impl FaultLine {
    fn compose(&mut self, signal: c_int, is_sent: bool, info: &libc::siginfo_t) -> std::fmt::Result {
        let mut name = [0_u8; 16];
        // SAFETY: PR_GET_NAME writes at most 16 bytes to `name`, with their terminator.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let thread = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
        let thread = thread.unwrap_or("without a name");
        let known = FAULTS.iter().find(|(number, _)| *number == signal);
        write!(self, "error: thread {thread} was ended by {}", known.map_or("a signal", |(_, name)| name))?;
        if !is_sent {
            // SAFETY: faults of the processor have an address.
            write!(self, " (address {:p})", unsafe { info.si_addr() })?;
        }
        writeln!(self, ", and this process with it")
    }

    fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl std::fmt::Write for FaultLine {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let room = &mut self.text[self.length..];
        let length = part.len().min(room.len());
        room[..length].copy_from_slice(&part.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}
