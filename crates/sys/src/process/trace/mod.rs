//! Ends a system call in which a thread of another process waits, with a result of the caller's choice.
//!
//! PTRACE_INTERRUPT makes the call give up with a restart code, and stops the thread before the kernel begins
//! the call again. A result in the place of that code is what the program gets. Without one the kernel begins
//! the call again, as after any other interruption.
//!
//! Tracing needs the permission of `pidfd_getfd`, and that nobody else traces the thread. Each group of
//! threads is traced by a thread that ends afterwards: the kernel then lets go of all that it still traces,
//! in whatever state, also if this process is killed.

mod registers;

use std::io;
use std::marker::PhantomData;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use registers::Registers;

/// Requests of ptrace(2): include/uapi/linux/ptrace.h.
const PTRACE_DETACH: libc::c_long = 17;
const PTRACE_GETSIGINFO: libc::c_long = 0x4202;
const PTRACE_GETREGSET: libc::c_long = 0x4204;
const PTRACE_SETREGSET: libc::c_long = 0x4205;
const PTRACE_SEIZE: libc::c_long = 0x4206;
const PTRACE_INTERRUPT: libc::c_long = 0x4207;
const PTRACE_GETSIGMASK: libc::c_long = 0x420a;
const PTRACE_SETSIGMASK: libc::c_long = 0x420b;
/// The general registers: include/uapi/linux/elf.h.
const NT_PRSTATUS: usize = 1;
/// `si_code` of a stop that PTRACE_INTERRUPT or a group-stop has caused.
const STOP: i32 = libc::SIGTRAP | 128 << 8;
/// The kernel's sigset_t, 64 signals.
const MASK_BYTES: usize = 8;

/// How long a thread is asked at short intervals whether it has stopped.
const SOON: Duration = Duration::from_millis(2);
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_millis(1);

/// A system call in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingCall {
    /// Its number on this machine.
    pub number: i64,
    /// Its arguments.
    pub args: [u64; 6],
    stack: u64,
    /// The address of the instruction after the call.
    instruction: u64,
}

impl PendingCall {
    /// The call in which a thread of a process waits; `None` if it runs or has not been waiting in a call.
    ///
    /// # Errors
    /// ENOENT or ESRCH if the thread has ended, EPERM or EACCES if this process may not trace it.
    pub fn of(process: i32, thread: i32) -> io::Result<Option<Self>> {
        let text = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"))?;
        Ok(Self::parse(&text))
    }

    /// `7 0x7ffc 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd 0x7f12`: number, arguments, stack, instruction (proc(5)).
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
        let mut rest = words.map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let mut args = [0; 6];
        for arg in &mut args {
            *arg = rest.next()?;
        }
        Some(Self { number, args, stack: rest.next()?, instruction: rest.next()? })
    }
}

/// Permits tracing. It exists only on a thread of [`trace_apart`].
pub struct Tracer(PhantomData<*const ()>);

/// Does `work` on a thread of its own. Whatever that still traces is let go.
///
/// # Errors
/// EAGAIN if there can't be another thread.
pub fn trace_apart<T: Send>(work: impl FnOnce(&Tracer) -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let tracing = thread::Builder::new().name("tracer".to_owned());
        let tracing = tracing.spawn_scoped(scope, || work(&Tracer(PhantomData)))?;
        tracing.join().map_err(|_| io::Error::other("the thread that traces has panicked"))
    })
}

/// A stopped thread of another process. It continues when this is dropped, and gets the signal that it has
/// stopped for.
pub struct StoppedThread<'tracer> {
    thread: i32,
    /// Interrupted by this process, not by a signal, nor stopped with its process.
    is_interrupted: bool,
    signal: i32,
    of: PhantomData<&'tracer Tracer>,
}

impl Tracer {
    /// Interrupts a thread, and waits until it has stopped. If it doesn't within `limit` (it sleeps
    /// uninterruptibly), it is let go when the tracing thread ends.
    ///
    /// # Errors
    /// EPERM if another process traces it, or this one may not; ESRCH if it has ended; ETIMEDOUT.
    pub fn stop(&self, thread: i32, limit: Duration) -> Result<StoppedThread<'_>, Errno> {
        ptrace(PTRACE_SEIZE, thread, 0, 0)?;
        ptrace(PTRACE_INTERRUPT, thread, 0, 0)?;
        let began = Instant::now();
        // Ask the thread: a waitpid() elsewhere in this process may take its report.
        let (signal, code) = loop {
            match stopped_for(thread) {
                // Not stopped yet, or gone.
                Err(Errno::SRCH) if began.elapsed() > limit => return Err(Errno::TIMEDOUT),
                Err(Errno::SRCH) => thread::sleep(if began.elapsed() < SOON { SHORT } else { LONG }),
                stopped => break stopped?,
            }
        };
        let is_of_a_trap = code == STOP;
        Ok(StoppedThread {
            thread,
            is_interrupted: is_of_a_trap && signal == libc::SIGTRAP,
            signal: if is_of_a_trap { 0 } else { signal },
            of: PhantomData,
        })
    }
}

impl StoppedThread<'_> {
    /// Ends the call with `value`. Returns `false`, and changes nothing, if the thread has not been
    /// interrupted within this very call.
    ///
    /// # Errors
    /// ESRCH if it has been killed.
    pub fn end(&self, call: &PendingCall, value: i64) -> Result<bool, Errno> {
        let mut registers = self.registers()?;
        if !self.is_interrupted || !registers.are_interrupted_in(call) {
            return Ok(false);
        }
        registers.set_result(call, value);
        let mut vector = registers.as_vector();
        ptrace(PTRACE_SETREGSET, self.thread, NT_PRSTATUS, (&raw mut vector).addr())?;
        Ok(true)
    }

    /// Whether [`Self::end`] would end this call.
    ///
    /// # Errors
    /// ESRCH if it has been killed.
    pub fn is_within(&self, call: &PendingCall) -> Result<bool, Errno> {
        Ok(self.is_interrupted && self.registers()?.are_interrupted_in(call))
    }

    /// Gives the thread the signal mask from before its call, as the kernel does when `ppoll` or `pselect6`
    /// returns without being interrupted. (PTRACE_GETSIGMASK shows the mask from before,
    /// kernel/ptrace.c.)
    ///
    /// # Errors
    /// ESRCH if it has been killed.
    pub fn restore_signal_mask(&self) -> Result<(), Errno> {
        let mut mask = 0_u64;
        ptrace(PTRACE_GETSIGMASK, self.thread, MASK_BYTES, (&raw mut mask).addr())?;
        ptrace(PTRACE_SETSIGMASK, self.thread, MASK_BYTES, (&raw mut mask).addr())
    }

    fn registers(&self) -> Result<Registers, Errno> {
        let mut registers = Registers::default();
        let mut vector = registers.as_vector();
        ptrace(PTRACE_GETREGSET, self.thread, NT_PRSTATUS, (&raw mut vector).addr())?;
        // A 32-bit program has fewer and narrower ones.
        if vector.iov_len == size_of::<Registers>() { Ok(registers) } else { Err(Errno::NOSYS) }
    }
}

impl Drop for StoppedThread<'_> {
    fn drop(&mut self) {
        // ESRCH: it has been killed.
        let _ = ptrace(PTRACE_DETACH, self.thread, 0, usize::try_from(self.signal).unwrap_or_default());
    }
}

/// The number of the signal or trap that a thread has stopped for, and its `si_code`. ESRCH until then.
fn stopped_for(thread: i32) -> Result<(i32, i32), Errno> {
    // SAFETY: siginfo_t consists of integers, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    ptrace(PTRACE_GETSIGINFO, thread, 0, (&raw mut info).addr())?;
    Ok((info.si_signo, info.si_code))
}

/// Why ptrace(2) can't be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untraceable {
    /// It fails.
    Refused(Errno),
    /// A seccomp filter kills the caller.
    Fatal,
}

/// Whether ptrace(2) may be called. A child asks, because a filter may kill the caller (systemd's
/// SystemCallFilter=).
///
/// # Errors
/// See [`Untraceable`].
pub fn may_trace() -> Result<(), Untraceable> {
    const NOTHING: libc::c_long = 0;
    // Without a signal at its end, it is waited for by `__WALL` alone, so that no other wait() gets it.
    // SAFETY: without CLONE_VM and without a stack this is fork(2): the child has a copy of this memory. This
    // process may have other threads, whose locks may be held in the copy. So the child only makes system
    // calls, and never returns from `probe`.
    let child = unsafe { libc::syscall(libc::SYS_clone, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) };
    match i32::try_from(child) {
        Ok(0) => probe(),
        Ok(child) if child > 0 => ended(child),
        _ => Err(Untraceable::Refused(last_errno())),
    }
}

/// Detaches from process 0, which never exists: ESRCH if the call is permitted. Ends with the errno of any
/// other failure.
fn probe() -> ! {
    // A core dump and a report of a crash would be misleading.
    // SAFETY: both calls take numbers only.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        ptrace(PTRACE_DETACH, 0, 0, 0)
    };
    let status = match answer {
        Ok(()) | Err(Errno::SRCH) => 0,
        Err(errno) => errno.raw_os_error(),
    };
    // SAFETY: the call takes a number. It ends this process without running anything of this program.
    unsafe { libc::_exit(status) }
}

fn ended(child: i32) -> Result<(), Untraceable> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one int to `status`.
        match unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } {
            -1 if last_errno() == Errno::INTR => {}
            -1 => return Err(Untraceable::Refused(last_errno())),
            _ => break,
        }
    }
    match libc::WEXITSTATUS(status) {
        _ if !libc::WIFEXITED(status) => Err(Untraceable::Fatal),
        0 => Ok(()),
        errno => Err(Untraceable::Refused(Errno::from_raw_os_error(errno))),
    }
}

/// `address` and `data` are numbers, or addresses of what the request reads or writes.
fn ptrace(request: libc::c_long, thread: i32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: each request of this module either ignores `data`, or takes a number, or the kernel reads and
    // writes through it: one siginfo_t, one iovec with the registers that it describes, or one mask of
    // MASK_BYTES. The callers pass the addresses of locals of these types, which outlive the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_ptrace, request, libc::c_long::from(thread), address, data) };
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
