//! The functions of the C library that a program calls and finds here: the border between C and the rest, which decides.
//!
//! Each takes C's arguments apart, asks a safe function, and puts the answer together again. A panic ends here: the call is
//! then made as if the library weren't there. `errno` is set by a failure and kept by a success, as POSIX permits and
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

/// Run by the dynamic linker when the library is loaded, before the program's own constructors.
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
        // SAFETY: the handlers are functions of this library, which is never unloaded.
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

/// The path that this library was loaded from.
fn own_file() -> Option<&'static CStr> {
    // SAFETY: dladdr fills the struct, whose fields may be zero; the name that it points to lives as long as the library.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(at_load as *const c_void, &raw mut info);
        (found != 0 && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    }
}

fn accepting_role() -> Option<&'static Accepting> {
    role()?.accepting.as_ref()
}

/// Answers as a C function does, and keeps errno over a success.
pub(crate) fn answer<T: From<i8>>(
    work: impl FnOnce() -> Option<Result<T, Errno>>,
    otherwise: impl FnOnce() -> T,
) -> T {
    // SAFETY: errno's place is that of the calling thread, valid as long as it lives.
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

/// The kernel's own answer.
pub(crate) fn plainly(number: c_long, args: [usize; 4]) -> c_int {
    let [a, b, c, d] = args;
    // All of these calls answer with a descriptor or a status.
    c_int::try_from(by_kernel(number, [a, b, c, d, 0, 0])).unwrap_or(-1)
}

pub(crate) fn by_kernel(number: c_long, args: [usize; 6]) -> c_long {
    // SAFETY: the arguments are those that the program gave to the function of that name, as that function would pass them on.
    unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
}

/// A C integer as a system call's register has it.
pub(crate) fn word(value: c_int) -> usize {
    isize::try_from(value).unwrap_or(-1).cast_unsigned()
}

pub(crate) fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: not -1; that it stays open during the call is the program's part, as it is towards the kernel. One that is
    // closed is refused by the kernel.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Writes an address where the program wants it, as the kernel does: as much as there is room for, and its whole length.
///
/// # Safety
/// `to` is null, or points to `*len` bytes, and `len` to an integer.
unsafe fn give(addr: &SocketAddrAny, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller's promise; the source is as long as `addr_len` says, and no room is written beyond `*len`.
    unsafe {
        let part = addr.addr_len().min(*len);
        core::ptr::copy_nonoverlapping(addr.as_ptr().cast::<u8>(), to.cast::<u8>(), part as usize);
        *len = addr.addr_len();
    }
}

/// Below it no program has memory: vm.mmap_min_addr is not less anywhere.
pub(crate) const LOWEST: usize = 4096;

/// Refuses a room of negative length, and addresses that no program has memory at: as the kernel does, as far as can be
/// seen without touching them. What lies elsewhere and isn't there ends the program, which POSIX leaves open.
///
/// # Safety
/// As [`give`].
unsafe fn check_room(to: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    if to.is_null() {
        return Ok(());
    }
    if len.addr() < LOWEST {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    match unsafe { *len } {
        room if room > socklen_t::MAX / 2 => Err(Errno::INVAL),
        room if room > 0 && to.addr() < LOWEST => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

/// # Safety
/// As accept4(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the same promise.
    unsafe { accept4(fd, addr, len, 0) }
}

/// # Safety
/// As accept4(2).
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
            // The connection is lost then, as it is in the kernel.
            // SAFETY: the caller's promise.
            unsafe { check_room(addr, len) }?;
            if let Some(known) = known {
                // SAFETY: the caller's promise.
                unsafe { give(&known, addr, len) };
            }
            Ok(socket.into_raw_fd())
        }))
    };
    answer(work, || plainly(libc::SYS_accept4, [word(fd), addr as usize, len as usize, word(flags)]))
}

/// # Safety
/// As listen(2): none.
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
/// As getpeername(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        // SAFETY: the caller's promise.
        unsafe { tell(peer::client(socket, role), addr, len) }
    };
    answer(work, || plainly(libc::SYS_getpeername, [word(fd), addr as usize, len as usize, 0]))
}

/// # Safety
/// As getsockname(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        // SAFETY: the caller's promise.
        unsafe { tell(peer::destination(socket, role), addr, len) }
    };
    answer(work, || plainly(libc::SYS_getsockname, [word(fd), addr as usize, len as usize, 0]))
}

/// # Safety
/// As [`give`].
unsafe fn tell(
    found: Result<Option<SocketAddr>, Errno>,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<Result<c_int, Errno>> {
    match found {
        Ok(None) => None,
        Err(error) => Some(Err(error)),
        // SAFETY: the caller's promise.
        Ok(Some(found)) => Some(unsafe { check_room(to, len) }.map(|()| {
            // SAFETY: the caller's promise.
            unsafe { give(&found.as_any(), to, len) };
            0
        })),
    }
}

/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let work = || {
        let (sending, socket) = (role()?.sending.as_ref()?, borrow(fd)?);
        // SAFETY: the caller's promise.
        let to = unsafe { read_address(addr, len) }?;
        if !connecting::is_meant(socket.as_fd(), to, sending) {
            return None;
        }
        Some(connecting::connect_telling(socket, to, sending).map(|()| 0))
    };
    answer(work, || plainly(libc::SYS_connect, [word(fd), addr as usize, len as usize, 0]))
}

/// What the kernel would refuse, it is left to refuse.
///
/// # Safety
/// `addr` is null or points to `len` bytes.
pub(crate) unsafe fn read_address(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let family_len = size_of::<libc::sa_family_t>();
    if addr.addr() < LOWEST || (len as usize) < family_len {
        return None;
    }
    // SAFETY: there are at least the family's bytes; unaligned, since nobody promises otherwise.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    let needed = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    if (len as usize) < needed {
        return None;
    }
    // SAFETY: the struct of that family is there as a whole, and both consist of integers only.
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
