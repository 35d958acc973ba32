//! C's arguments and answers: errno, descriptors, addresses in the program's memory; and the functions that
//! the program would call without this library.

use core::ffi::{CStr, c_int, c_long, c_void};
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{sockaddr, socklen_t};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

/// Returns a result as a C function does. A success leaves errno unchanged.
pub(crate) fn answer<T: From<i8>>(
    work: impl FnOnce() -> Option<Result<T, Errno>>,
    otherwise: impl FnOnce() -> T,
) -> T {
    // SAFETY: __errno_location has no requirements. It returns the calling thread's errno, valid as long as
    // the thread lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno's place is valid as long as the calling thread lives, and only this thread uses it.
    let before = unsafe { *errno };
    let worked = catch_unwind(AssertUnwindSafe(work)).ok().flatten();
    // SAFETY: errno's place is valid as long as the calling thread lives, and only this thread uses it.
    unsafe { *errno = before };
    match worked {
        None => otherwise(),
        Some(Ok(value)) => value,
        Some(Err(error)) => {
            // SAFETY: errno's place is valid as long as the calling thread lives, and only this thread uses
            // it.
            unsafe { *errno = error.raw_os_error() };
            T::from(-1)
        }
    }
}

/// The result of the kernel's own call.
pub(crate) fn plainly(number: c_long, args: [usize; 4]) -> c_int {
    let [a, b, c, d] = args;
    // All of these calls return a descriptor or a status.
    c_int::try_from(by_kernel(number, [a, b, c, d, 0, 0])).unwrap_or(-1)
}

pub(crate) fn by_kernel(number: c_long, args: [usize; 6]) -> c_long {
    // SAFETY: the arguments are those that the program passed to the function of that name, in the form in
    // which the C library would pass them to the kernel. The program guarantees what that function
    // requires.
    unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
}

/// The error of the C library's last call in this thread, which has failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(errno())
}

/// errno; 0 before any call has failed.
pub(crate) fn errno() -> c_int {
    // SAFETY: __errno_location has no requirements. It returns the calling thread's errno, valid as long as
    // the thread lives.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: __errno_location has no requirements. It returns the calling thread's errno, valid as long as
    // the thread lives, which only this thread uses.
    unsafe { *libc::__errno_location() = value };
}

/// A C integer as a system call's register holds it.
pub(crate) fn word(value: c_int) -> usize {
    isize::try_from(value).unwrap_or(-1).cast_unsigned()
}

pub(crate) fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: BorrowedFd requires a number other than -1, which was checked. The program must keep its
    // descriptor open during its call, as it must for the kernel. The kernel refuses a closed one.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Writes an address to the program's memory as the kernel does: truncated to the room, with its whole length
/// in `len`.
///
/// # Safety
/// `to` is null, or points to `*len` bytes, and `len` to an integer.
pub(crate) unsafe fn give(addr: &SocketAddrAny, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller guarantees that `to` points to `*len` writable bytes and that `len` is valid. The
    // source has `addr_len` bytes, and at most `*len` bytes are written.
    unsafe {
        let part = addr.addr_len().min(*len);
        core::ptr::copy_nonoverlapping(addr.as_ptr().cast::<u8>(), to.cast::<u8>(), part as usize);
        *len = addr.addr_len();
    }
}

/// No program has memory below this address: vm.mmap_min_addr is never smaller.
pub(crate) const LOWEST: usize = 4096;

/// Refuses a negative length and addresses that can't be mapped, as the kernel does. Other bad addresses end
/// the program by a signal, which POSIX permits.
///
/// # Safety
/// The requirements of [`give`].
pub(crate) unsafe fn check_room(to: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    if to.is_null() {
        return Ok(());
    }
    if len.addr() < LOWEST {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller guarantees that `len` points to an integer unless it is null; null and unmapped low
    // addresses were refused above.
    match unsafe { *len } {
        room if room > socklen_t::MAX / 2 => Err(Errno::INVAL),
        room if room > 0 && to.addr() < LOWEST => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

/// Reads an internet address. `None` for anything that the kernel would refuse, so that the kernel reports
/// it.
///
/// # Safety
/// `addr` is null or points to `len` bytes.
pub(crate) unsafe fn read_address(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let family_len = size_of::<libc::sa_family_t>();
    if addr.addr() < LOWEST || (len as usize) < family_len {
        return None;
    }
    // SAFETY: `addr` points to `len` readable bytes, which were checked to hold a family. The read is
    // unaligned because C does not guarantee the alignment.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    let needed = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    if (len as usize) < needed {
        return None;
    }
    // SAFETY: `addr` points to `len` readable bytes, and `len` was checked to hold the whole struct of this
    // family. Both structs consist of integers, for which every bit pattern is valid.
    unsafe {
        if needed == size_of::<libc::sockaddr_in>() {
            let v4 = addr.cast::<libc::sockaddr_in>().read_unaligned();
            let ip = u32::from_be(v4.sin_addr.s_addr);
            Some(SocketAddr::new(core::net::Ipv4Addr::from(ip).into(), u16::from_be(v4.sin_port)))
        } else {
            let v6 = addr.cast::<libc::sockaddr_in6>().read_unaligned();
            let ip = core::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(core::net::SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
    }
}

/// A function that would be called without this library.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Never null: this library is linked with the C library, which has all of them.
    pub(crate) fn function(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: dlsym requires a C string, which the name is. RTLD_NEXT searches the libraries after this
        // one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}
