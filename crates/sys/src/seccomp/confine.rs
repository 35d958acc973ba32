//! A filter for this process itself, permanent.

use std::io;

use libc::sock_filter;

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
pub(super) fn described(program: &[sock_filter]) -> io::Result<libc::sock_fprog> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(libc::sock_fprog { len, filter: program.as_ptr().cast_mut() })
}
