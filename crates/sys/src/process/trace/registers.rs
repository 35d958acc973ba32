//! The registers of a thread that was interrupted in a system call.

use super::PendingCall;

/// As PTRACE_GETREGSET has them.
#[repr(transparent)]
pub(super) struct Registers(libc::user_regs_struct);

impl Default for Registers {
    fn default() -> Self {
        // SAFETY: the struct consists of integers, for which zeros are valid.
        Self(unsafe { std::mem::zeroed() })
    }
}

impl Registers {
    /// For PTRACE_GETREGSET and PTRACE_SETREGSET.
    pub(super) fn as_vector(&mut self) -> libc::iovec {
        libc::iovec { iov_base: (&raw mut self.0).cast(), iov_len: size_of::<Self>() }
    }
}

/// The results with which the kernel begins a call again (include/linux/errno.h): ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK. A select() whose time-out can't be written returns
/// EINTR.
#[cfg(target_arch = "x86_64")]
const INTERRUPTED: [i64; 5] = [-512, -513, -514, -516, -(libc::EINTR as i64)];

/// The kernel decides after the stop whether to begin the call again, by `orig_rax` and `rax`
/// (arch/x86/kernel/signal.c).
#[cfg(target_arch = "x86_64")]
impl Registers {
    pub(super) fn are_interrupted_in(&self, call: &PendingCall) -> bool {
        let Self(now) = self;
        now.orig_rax.cast_signed() == call.number
            && [now.rdi, now.rsi, now.rdx, now.r10, now.r8, now.r9] == call.args
            && (now.rsp, now.rip) == (call.stack, call.instruction)
            && INTERRUPTED.contains(&now.rax.cast_signed())
    }

    pub(super) fn set_result(&mut self, _: &PendingCall, value: i64) {
        self.0.rax = value.cast_unsigned();
    }
}

/// The kernel prepares to begin the call again before the stop: the first argument is back, and the next
/// instruction is the call. If a tracer has changed the instruction, that stays
/// (arch/arm64/kernel/signal.c). A thread that has returned meanwhile, and is about to make the same call
/// again, looks the same: it may get the result, too.
#[cfg(target_arch = "aarch64")]
impl Registers {
    pub(super) fn are_interrupted_in(&self, call: &PendingCall) -> bool {
        const CALL_BYTES: u64 = 4;
        let Self(now) = self;
        let begins_again = now.pc.wrapping_add(CALL_BYTES) == call.instruction && now.regs[0] == call.args[0];
        let has_failed = now.pc == call.instruction && now.regs[0].cast_signed() == -i64::from(libc::EINTR);
        now.regs[8].cast_signed() == call.number
            && now.regs[1..6] == call.args[1..]
            && now.sp == call.stack
            && (begins_again || has_failed)
    }

    pub(super) fn set_result(&mut self, call: &PendingCall, value: i64) {
        self.0.regs[0] = value.cast_unsigned();
        self.0.pc = call.instruction;
    }
}
