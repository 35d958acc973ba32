//! Hooks for the C library functions that a program calls: the border between C and the safe modules, which make
//! the decisions.
//!
//! Each hook converts C's arguments, calls a safe function and converts the result. A panic ends here: the call
//! is then made as without the library. A failure sets `errno` and a success keeps it, as POSIX permits and
//! programs expect.

use core::ffi::{CStr, c_int, c_long, c_void};
use core::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{sockaddr, socklen_t};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{SocketAddrAny, SocketFlags};

use crate::accepting::Peer;
use crate::role::{Accepting, role};
use crate::{
    accepting, connecting, listeners, moving, ours, peer, probe, receiving_hooks, role as roles,
    sending_hooks, waiter, waiting_hooks,
};

/// The dynamic linker runs this when the library is loaded, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let done = catch_unwind(|| {
        moving::begin();
        let file = own_file();
        roles::assume(file);
        sending_hooks::find_all();
        receiving_hooks::find_all();
        waiting_hooks::find_all();
        // SAFETY: the handlers must stay callable for the life of the process. They are functions of this
        // library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    if done.is_err() {
        std::process::abort();
    }
}

unsafe extern "C" fn before_fork() {
    ours::before_fork();
}

unsafe extern "C" fn in_parent() {
    ours::after_fork();
}

unsafe extern "C" fn in_child() {
    ours::after_fork();
    let _ = catch_unwind(|| {
        moving::begin();
        if let Some(role) = accepting_role() {
            role.family.ready.on_fork();
            probe::on_fork();
        }
        waiter::on_fork();
    });
}

/// The path from which this library was loaded.
fn own_file() -> Option<&'static CStr> {
    // SAFETY: dladdr writes a Dl_info, and `info` is one; its fields are pointers, for which zero is valid. The
    // name that it returns lives as long as the library, which is never unloaded.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(at_load as *const c_void, &raw mut info);
        (found != 0 && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    }
}

fn accepting_role() -> Option<&'static Accepting> {
    role()?.accepting.as_ref()
}

/// Returns a result as a C function does. A success leaves errno unchanged.
pub(crate) fn answer<T: From<i8>>(
    work: impl FnOnce() -> Option<Result<T, Errno>>,
    otherwise: impl FnOnce() -> T,
) -> T {
    // SAFETY: __errno_location has no requirements. It returns the calling thread's errno, valid as long as the
    // thread lives.
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
            // SAFETY: errno's place is valid as long as the calling thread lives, and only this thread uses it.
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
    // SAFETY: the arguments are those that the program passed to the function of that name, in the form in which
    // the C library would pass them to the kernel. The program guarantees what that function requires.
    unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
}

/// A C integer as a system call's register holds it.
pub(crate) fn word(value: c_int) -> usize {
    isize::try_from(value).unwrap_or(-1).cast_unsigned()
}

pub(crate) fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: BorrowedFd requires a number other than -1, which was checked. The program must keep its descriptor
    // open during its call, as it must for the kernel. The kernel refuses a closed one.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Writes an address to the program's memory as the kernel does: truncated to the room, with its whole length in
/// `len`.
///
/// # Safety
/// `to` is null, or points to `*len` bytes, and `len` to an integer.
unsafe fn give(addr: &SocketAddrAny, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller guarantees that `to` points to `*len` writable bytes and that `len` is valid. The source
    // has `addr_len` bytes, and at most `*len` bytes are written.
    unsafe {
        let part = addr.addr_len().min(*len);
        core::ptr::copy_nonoverlapping(addr.as_ptr().cast::<u8>(), to.cast::<u8>(), part as usize);
        *len = addr.addr_len();
    }
}

/// No program has memory below this address: vm.mmap_min_addr is never smaller.
pub(crate) const LOWEST: usize = 4096;

/// Refuses a negative length and addresses that can't be mapped, as the kernel does. Other bad addresses end the
/// program by a signal, which POSIX permits.
///
/// # Safety
/// The requirements of [`give`].
unsafe fn check_room(to: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
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

/// # Safety
/// The requirements of accept4(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: accept4 requires what accept does: `addr` is null or points to `*len` writable bytes. The caller
    // guarantees it.
    unsafe { accept4(fd, addr, len, 0) }
}

/// # Safety
/// The requirements of accept4(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let work = || {
        let (role, listener) = (accepting_role()?, borrow(fd)?);
        let known = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if flags & !known != 0 {
            return None;
        }
        let flags = SocketFlags::from_bits_retain(flags.cast_unsigned());
        Some(accepting::accept(listener, flags, role).and_then(|(socket, peer)| {
            let known = match peer {
                Peer::AsItIs(addr) => addr,
                Peer::Known(addr) => Some(addr.as_any()),
            };
            // The connection is then lost, as in the kernel.
            // SAFETY: the caller guarantees, as accept4(2) requires, that `addr` is null or points to `*len`
            // writable bytes.
            unsafe { check_room(addr, len) }?;
            if let Some(known) = known {
                // SAFETY: the caller guarantees, as accept4(2) requires, that `addr` is null or points to `*len`
                // writable bytes.
                unsafe { give(&known, addr, len) };
            }
            Ok(socket.into_raw_fd())
        }))
    };
    answer(work, || plainly(libc::SYS_accept4, [word(fd), addr as usize, len as usize, word(flags)]))
}

/// # Safety
/// None; listen(2) takes no pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        if !listeners::is_meant(socket, &role.rules) {
            return None;
        }
        listeners::make_ready(socket);
        Some(rustix::net::listen(socket, backlog.max(listeners::BACKLOG)).map(|()| 0))
    };
    answer(work, || plainly(libc::SYS_listen, [word(fd), word(backlog), 0, 0]))
}

/// # Safety
/// The requirements of getpeername(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        // SAFETY: the caller guarantees, as getpeername(2) requires, that `addr` points to `*len` writable bytes.
        unsafe { tell(peer::client(socket, role), addr, len) }
    };
    answer(work, || plainly(libc::SYS_getpeername, [word(fd), addr as usize, len as usize, 0]))
}

/// # Safety
/// The requirements of getsockname(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        // SAFETY: the caller guarantees, as getsockname(2) requires, that `addr` points to `*len` writable bytes.
        unsafe { tell(peer::destination(socket, role), addr, len) }
    };
    answer(work, || plainly(libc::SYS_getsockname, [word(fd), addr as usize, len as usize, 0]))
}

/// # Safety
/// The requirements of [`give`].
unsafe fn tell(
    found: Result<Option<SocketAddr>, Errno>,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<Result<c_int, Errno>> {
    match found {
        Ok(None) => None,
        Err(error) => Some(Err(error)),
        // SAFETY: the caller guarantees that `to` is null or points to `*len` writable bytes.
        Ok(Some(found)) => Some(unsafe { check_room(to, len) }.map(|()| {
            // SAFETY: the caller guarantees that `to` is null or points to `*len` writable bytes.
            unsafe { give(&found.as_any(), to, len) };
            0
        })),
    }
}

/// # Safety
/// The requirements of connect(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let work = || {
        let (sending, socket) = (role()?.sending.as_ref()?, borrow(fd)?);
        // SAFETY: the caller guarantees, as connect(2) requires, that `addr` points to `len` readable bytes.
        let to = unsafe { read_address(addr, len) }?;
        if !connecting::is_meant(socket.as_fd(), to, sending) {
            return None;
        }
        Some(connecting::connect_telling(socket, to, sending).map(|()| 0))
    };
    answer(work, || plainly(libc::SYS_connect, [word(fd), addr as usize, len as usize, 0]))
}

/// Reads an internet address. `None` for anything that the kernel would refuse, so that the kernel reports it.
///
/// # Safety
/// `addr` is null or points to `len` bytes.
pub(crate) unsafe fn read_address(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let family_len = size_of::<libc::sa_family_t>();
    if addr.addr() < LOWEST || (len as usize) < family_len {
        return None;
    }
    // SAFETY: `addr` points to `len` readable bytes, which were checked to hold a family. The read is unaligned
    // because C does not guarantee the alignment.
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
