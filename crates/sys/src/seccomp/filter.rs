//! Selects the calls to intercept, or to refuse this process: a classic BPF program, installed for a process
//! and its children.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
use rustix::io::Errno;
use rustix::thread::SecureComputingMode;

use super::calls;

/// The treatment of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeccompAction {
    /// The supervisor answers it.
    Ask,
    /// It fails with this error number.
    Fail(Errno),
}

/// A filter. Calls without a rule pass.
#[derive(Debug, Clone)]
pub struct Filter {
    program: Vec<sock_filter>,
}

/// `linux/audit.h`: the machine, 64 bits, little endian. The calls of a 32-bit program have other numbers.
pub(super) const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") { 0xC000_00B7 } else { 0xC000_003E };

/// The offsets in struct seccomp_data of the call's number, the architecture, and the low half of an
/// argument.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Marks the preloaded library's own calls (see [`crate::marked`]).
pub(crate) const MARK: u32 = 0x7472_7565;

impl Default for Filter {
    fn default() -> Self {
        let program = vec![
            load(ARCH),
            jump(BPF_JEQ, ARCHITECTURE, 1, 0),
            give(libc::SECCOMP_RET_ALLOW),
            load(NUMBER),
            give(libc::SECCOMP_RET_ALLOW),
        ];
        Self { program }
    }
}

/// The calls of 32-bit programs that a filter treats: i386 on x86-64, ARM on AArch64.
#[derive(Debug, Clone, Copy)]
pub struct ForeignCalls {
    /// The numbers.
    numbers: &'static [u32],
    /// The numbers within socketcall(2), its first argument. Only i386 has it.
    socketcalls: &'static [u32],
}

/// i386: socketcall(2), its number.
const SOCKETCALL: u32 = 102;
const IS_X86: bool = cfg!(target_arch = "x86_64");

impl ForeignCalls {
    /// listen, accept, accept4.
    pub const ACCEPTING: Self = Self {
        numbers: if IS_X86 { &[363, 364] } else { &[284, 285, 366] },
        socketcalls: if IS_X86 { &[4, 5, 18] } else { &[] },
    };
    /// connect.
    pub const CONNECTING: Self =
        Self { numbers: if IS_X86 { &[362] } else { &[283] }, socketcalls: if IS_X86 { &[3] } else { &[] } };

    /// Instructions that end with a verdict: `action` for these calls and io_uring, whose numbers are the
    /// same everywhere.
    fn program(self, action: SeccompAction) -> Vec<sock_filter> {
        let rings = [calls::IO_URING_SETUP, calls::IO_URING_ENTER, calls::IO_URING_REGISTER].map(number);
        let rule = |number: u32| [jump(BPF_JEQ, number, 0, 1), give(action.code())];
        let mut program = vec![load(NUMBER)];
        program.extend(self.numbers.iter().copied().chain(rings).flat_map(rule));
        if !self.socketcalls.is_empty() {
            program.extend([
                jump(BPF_JEQ, SOCKETCALL, 1, 0),
                give(libc::SECCOMP_RET_ALLOW),
                load(argument(0)),
            ]);
            program.extend(self.socketcalls.iter().copied().flat_map(rule));
        }
        program.push(give(libc::SECCOMP_RET_ALLOW));
        program
    }
}

/// The calls of x32 programs have the numbers of x86-64 with this bit, and the same architecture.
const X32: u32 = 0x4000_0000;

impl Filter {
    /// A filter for these calls of programs of another architecture, too: all other calls of theirs pass. x32
    /// programs fail (ENOSYS), as on a kernel without x32, which most are.
    #[must_use]
    pub fn with_foreign(calls: ForeignCalls, action: SeccompAction) -> Self {
        let foreign = calls.program(action);
        let length = u8::try_from(foreign.len()).unwrap_or(u8::MAX);
        let mut program = vec![load(ARCH), jump(BPF_JEQ, ARCHITECTURE, length, 0)];
        program.extend(foreign);
        program.extend([
            load(NUMBER),
            jump(BPF_JGE, X32, 0, 1),
            give(SeccompAction::Fail(Errno::NOSYS).code()),
            give(libc::SECCOMP_RET_ALLOW),
        ]);
        Self { program }
    }

    /// Adds a rule for a call by its number (see [`super::calls`]).
    #[must_use]
    pub fn rule(self, call: i64, verdict: SeccompAction) -> Self {
        self.append(&[jump(BPF_JEQ, number(call), 0, 1), give(verdict.code())])
    }

    /// Adds a rule for a call whose argument (counted from 0) has any of these bits set.
    #[must_use]
    pub fn rule_if_set(self, call: i64, index: u32, bits: u32, verdict: SeccompAction) -> Self {
        self.append(&[
            jump(BPF_JEQ, number(call), 0, 4),
            load(argument(index)),
            jump(BPF_JSET, bits, 0, 1),
            give(verdict.code()),
            give(libc::SECCOMP_RET_ALLOW),
        ])
    }

    /// Adds a rule for a call, except if its argument (counted from 0) has the mark in its upper half. Only
    /// for arguments that are an int for the kernel, which uses the lower half.
    #[must_use]
    pub fn rule_unless_marked(self, call: i64, index: u32, verdict: SeccompAction) -> Self {
        self.append(&[
            jump(BPF_JEQ, number(call), 0, 4),
            load(argument(index) + 4),
            jump(BPF_JEQ, MARK, 1, 0),
            give(verdict.code()),
            give(libc::SECCOMP_RET_ALLOW),
        ])
    }

    /// Adds a rule for a call whose argument `index` has any of these bits set, except if its argument
    /// `marked` has the mark in its upper half, as in [`Self::rule_unless_marked`].
    #[must_use]
    pub fn rule_if_set_unless_marked(
        self,
        call: i64,
        marked: u32,
        (index, bits): (u32, u32),
        verdict: SeccompAction,
    ) -> Self {
        self.append(&[
            jump(BPF_JEQ, number(call), 0, 6),
            load(argument(marked) + 4),
            jump(BPF_JEQ, MARK, 3, 0),
            load(argument(index)),
            jump(BPF_JSET, bits, 0, 1),
            give(verdict.code()),
            give(libc::SECCOMP_RET_ALLOW),
        ])
    }

    /// Inserts instructions before the last one, which allows all other calls.
    fn append(mut self, instructions: &[sock_filter]) -> Self {
        let end = self.program.len() - 1;
        self.program.splice(end..end, instructions.iter().copied());
        self
    }

    /// Installs it permanently for the calling thread, and returns the descriptor of its notifications.
    /// Without CAP_SYS_ADMIN it first sets no_new_privs, which takes privileges from set-user-ID
    /// programs.
    ///
    /// Allocates nothing, so that it may be called between fork and exec.
    ///
    /// # Errors
    /// EINVAL before Linux 5.19, EBUSY if there is a supervisor already, EACCES or EPERM if seccomp is
    /// forbidden.
    pub fn install(&self) -> io::Result<OwnedFd> {
        let raw = self.try_install().or_else(|error| {
            if error.raw_os_error() != Some(libc::EACCES) {
                return Err(error);
            }
            rustix::thread::set_no_new_privs(true)?;
            self.try_install()
        })?;
        // SAFETY: the kernel has just created this descriptor for this process, and it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// Installs it permanently for the calling thread and what it starts, without a supervisor: only for
    /// rules that fail calls. Without CAP_SYS_ADMIN it first sets no_new_privs, which takes privileges
    /// from set-user-ID programs. Below another filter it calls prctl(2): systemd's
    /// SystemCallFilter=@system-service kills a program that calls seccomp(2).
    ///
    /// # Errors
    /// EINVAL or ENOSYS where the kernel lacks seccomp filters, EPERM if they are forbidden.
    pub fn apply(&self) -> io::Result<()> {
        let install = || match rustix::thread::secure_computing_mode() {
            Ok(SecureComputingMode::Filter) => self.apply_by_prctl(),
            _ => confine(&self.program),
        };
        install().or_else(|error| {
            if error.raw_os_error() != Some(libc::EACCES) {
                return Err(error);
            }
            rustix::thread::set_no_new_privs(true)?;
            install()
        })
    }

    fn apply_by_prctl(&self) -> io::Result<()> {
        let program = described(&self.program)?;
        // SAFETY: the kernel reads a sock_fprog and the instructions that it points to; both live during the
        // call.
        let answer =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn try_install(&self) -> io::Result<RawFd> {
        let program = described(&self.program)?;
        set_filter(&raw const program)
    }
}

/// Installs `program` for the calling thread and the threads that it starts. Calls that it refuses are
/// written to the kernel's audit log. The thread must have no_new_privs or CAP_SYS_ADMIN.
///
/// Speculation stays as it is: before Linux 5.16 a filter also turns off store bypass and indirect branches
/// for the thread, which protects programs that run foreign code, and would slow this one.
///
/// # Errors
/// EINVAL where the kernel lacks seccomp filters or refuses the program, EACCES without no_new_privs.
pub fn confine(program: &[sock_filter]) -> io::Result<()> {
    let program = described(program)?;
    // SAFETY: the kernel reads a sock_fprog at this address and the `len` instructions that it points to,
    // copies both before it returns, and writes neither; `program` lives until then.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_LOG | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The program as the kernel takes it: it points to the instructions.
fn described(program: &[sock_filter]) -> io::Result<libc::sock_fprog> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(libc::sock_fprog { len, filter: program.as_ptr().cast_mut() })
}

/// Whether this kernel supports what the supervisor needs, and permits it: EFAULT means "supported, but there
/// is no program at that address".
///
/// # Errors
/// EINVAL before Linux 5.19, ENOSYS or EPERM where a sandbox forbids seccomp.
pub fn is_supported() -> io::Result<()> {
    match set_filter(std::ptr::null()) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::Other.into()),
    }
}

fn set_filter(program: *const libc::sock_fprog) -> io::Result<RawFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel reads a sock_fprog at `program` and the instructions that it points to; both live in
    // the callers during the call. A null pointer makes it fail with EFAULT.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(answer).map_err(io::Error::other)
}

impl SeccompAction {
    fn code(self) -> u32 {
        match self {
            Self::Ask => libc::SECCOMP_RET_USER_NOTIF,
            Self::Fail(errno) => libc::SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned(),
        }
    }
}

/// The numbers of calls are small and positive.
fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
}

fn jump(condition: u32, value: u32, if_so: u8, if_not: u8) -> sock_filter {
    instruction(BPF_JMP | condition | BPF_K, value, if_so, if_not)
}

fn give(verdict: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, verdict, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}
