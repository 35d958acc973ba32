//! Another process's memory.
//!
//! It uses process_vm_readv(2) and process_vm_writev(2), which respect page protection like the process's own
//! calls: a write to a read-only page fails with EFAULT. A thread's id could be reused between a check and
//! the call, so callers check directly before and after that the thread still waits for their answer.

use std::io;

use rustix::io::Errno;

/// Reads all of `buffer` from `address` in the memory of `thread`'s process.
///
/// # Errors
/// EFAULT if it isn't readable in full, EPERM, ESRCH.
pub fn read_memory(thread: i32, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let there = distant(address, buffer.len())?;
    // SAFETY: `here` describes exactly the caller's buffer, which is borrowed mutably. `there` is only a
    // number in this process.
    let done = unsafe { libc::process_vm_readv(thread, &raw const here, 1, &raw const there, 1, 0) };
    complete(done, buffer.len())
}

/// Writes all of `bytes` to `address` in the memory of `thread`'s process.
///
/// # Errors
/// EFAULT if it isn't writable in full, EPERM, ESRCH.
pub fn write_memory(thread: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = distant(address, bytes.len())?;
    // SAFETY: `here` describes exactly the caller's bytes, which the kernel only reads. `there` is an address
    // in another process.
    let done = unsafe { libc::process_vm_writev(thread, &raw const here, 1, &raw const there, 1, 0) };
    complete(done, bytes.len())
}

fn distant(address: u64, length: usize) -> Result<libc::iovec, Errno> {
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: length })
}

fn complete(done: isize, wanted: usize) -> Result<(), Errno> {
    match usize::try_from(done) {
        Ok(done) if done == wanted => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
