//! Hooks for the C library functions that a program calls: the border between C and the safe modules, which
//! make the decisions.
//!
//! Each hook converts C's arguments, calls a safe function and converts the result. A panic ends here: the
//! call is then made as without the library. A failure sets `errno` and a success keeps it, as POSIX permits
//! and programs expect.

use core::ffi::{CStr, c_int, c_void};
use core::net::SocketAddr;
use std::os::fd::{AsFd, IntoRawFd};
use std::panic::catch_unwind;

use libc::{msghdr, sockaddr, socklen_t};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::addr::SocketAddrArg;
use truepeer_sys::marked;

use crate::abi::{Next, answer, borrow, check_room, errno, give, plainly, read_address, set_errno, word};
use crate::accepting::Peer;
use crate::bell::Pause;
use crate::role::{Accepting, role};
use crate::{accepting, bell, connecting, forks, listeners, ours, peer, rings, role as roles, waiting_hooks};

/// The dynamic linker runs this when the library is loaded, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let done = catch_unwind(|| {
        forks::begin();
        let file = own_file();
        roles::assume(file);
        // dlsym(3) may take locks, and these may be called in signal handlers and after fork().
        for next in [&ACCEPT4, &CONNECT, &SENDTO, &SENDMSG] {
            next.function();
        }
        rings::refuse();
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
    forks::on_fork();
}

/// The path from which this library was loaded.
fn own_file() -> Option<&'static CStr> {
    // SAFETY: dladdr writes a Dl_info, and `info` is one; its fields are pointers, for which zero is valid.
    // The name that it returns lives as long as the library, which is never unloaded.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(at_load as *const c_void, &raw mut info);
        (found != 0 && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    }
}

fn accepting_role() -> Option<&'static Accepting> {
    role()?.accepting.as_ref()
}

/// # Safety
/// The requirements of accept4(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: accept4 requires what accept does: `addr` is null or points to `*len` writable bytes. The
    // caller guarantees it.
    unsafe { accept4(fd, addr, len, 0) }
}

/// # Safety
/// The requirements of accept4(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if accepting_role().is_none() {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        return unsafe {
            core::mem::transmute::<*mut c_void, Accept4>(ACCEPT4.function())(fd, addr, len, flags)
        };
    }
    let (before, mut pause) = (errno(), None);
    loop {
        // SAFETY: the caller guarantees the requirements of accept4(2).
        if let Some(answered) = unsafe { accept_once(fd, addr, len, flags, &mut pause) } {
            return answered;
        }
        let Some(pause) = &mut pause else { return -1 };
        let (fds, limit) = pause.asks();
        // SAFETY: `fds` are as poll(2) requires. A thread that is cancelled here unwinds its stack: no frame
        // from here to the program's has anything to drop, and none catches.
        if !unsafe { waiting_hooks::wait(fds, limit) } {
            if !pause.goes_on() {
                return -1;
            }
            set_errno(before);
        }
    }
}

/// `None`: wait, and begin again.
///
/// # Safety
/// The requirements of accept4(2).
unsafe fn accept_once(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
    pause: &mut Option<Pause>,
) -> Option<c_int> {
    let mut waits = false;
    let work = || {
        forks::notice();
        let (role, listener) = (accepting_role()?, borrow(fd)?);
        let known = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if flags & !known != 0 {
            return None;
        }
        let flags = SocketFlags::from_bits_retain(flags.cast_unsigned());
        let accepted = accepting::accept(listener, flags, role, pause);
        if matches!(accepted, Err(bell::WAIT)) {
            waits = true;
            return Some(Ok(0));
        }
        Some(accepted.and_then(|(socket, peer)| {
            let known = match peer {
                Peer::AsItIs(addr) => addr,
                Peer::Known(addr) => Some(addr.as_any()),
            };
            // The connection is then lost, as in the kernel.
            // SAFETY: the caller guarantees, as accept4(2) requires, that `addr` is null or points to `*len`
            // writable bytes.
            unsafe { check_room(addr, len) }?;
            if let Some(known) = known {
                // SAFETY: the caller guarantees, as accept4(2) requires, that `addr` is null or points to
                // `*len` writable bytes.
                unsafe { give(&known, addr, len) };
            }
            Ok(socket.into_raw_fd())
        }))
    };
    let answered = answer(work, || {
        plainly(libc::SYS_accept4, [marked::register(fd), addr as usize, len as usize, word(flags)])
    });
    (!waits).then_some(answered)
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
        listeners::make_ready(socket, &role.rules);
        Some(marked::listen(socket, backlog.max(listeners::BACKLOG)).map(|()| 0))
    };
    answer(work, || plainly(libc::SYS_listen, [marked::register(fd), word(backlog), 0, 0]))
}

/// # Safety
/// The requirements of getpeername(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        // SAFETY: the caller guarantees, as getpeername(2) requires, that `addr` points to `*len` writable
        // bytes.
        unsafe { tell(peer::client(socket, role), addr, len) }
    };
    answer(work, || plainly(libc::SYS_getpeername, [marked::register(fd), addr as usize, len as usize, 0]))
}

/// # Safety
/// The requirements of getsockname(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let work = || {
        let (role, socket) = (accepting_role()?, borrow(fd)?);
        // SAFETY: the caller guarantees, as getsockname(2) requires, that `addr` points to `*len` writable
        // bytes.
        unsafe { tell(peer::destination(socket, role), addr, len) }
    };
    answer(work, || plainly(libc::SYS_getsockname, [marked::register(fd), addr as usize, len as usize, 0]))
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
pub(crate) unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if role().is_none_or(|role| role.sending.is_none()) {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        return unsafe { core::mem::transmute::<*mut c_void, Connect>(CONNECT.function())(fd, addr, len) };
    }
    let work = || {
        let (sending, socket) = (role()?.sending.as_ref()?, borrow(fd)?);
        // SAFETY: the caller guarantees, as connect(2) requires, that `addr` points to `len` readable bytes.
        let to = unsafe { read_address(addr, len) }?;
        if !connecting::is_meant(socket.as_fd(), to, sending) {
            return None;
        }
        Some(connecting::connect_telling(socket, to, sending).map(|()| 0))
    };
    answer(work, || plainly(libc::SYS_connect, [marked::register(fd), addr as usize, len as usize, 0]))
}

/// In these the thread may be cancelled (pthreads(7)).
static ACCEPT4: Next = Next::new(c"accept4");
static CONNECT: Next = Next::new(c"connect");
static SENDTO: Next = Next::new(c"sendto");
static SENDMSG: Next = Next::new(c"sendmsg");

type Accept4 = unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
type Connect = unsafe extern "C-unwind" fn(c_int, *const sockaddr, socklen_t) -> c_int;
type Sendto = unsafe extern "C" fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
type Sendmsg = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> isize;

/// MSG_FASTOPEN would send the program's data before the header. It is refused, and programs then connect as
/// usual. All else goes to the C library's own function, which remains a cancellation point.
fn refuse_fast_open(flags: c_int) -> Option<Result<isize, Errno>> {
    (flags & libc::MSG_FASTOPEN != 0 && role()?.sending.is_some()).then_some(Err(Errno::OPNOTSUPP))
}

/// # Safety
/// The requirements of sendto(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    count: usize,
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> isize {
    answer(
        || refuse_fast_open(flags),
        || {
            // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right;
            // the arguments are the program's own, unchanged.
            unsafe {
                core::mem::transmute::<*mut c_void, Sendto>(SENDTO.function())(
                    fd, bytes, count, flags, addr, len,
                )
            }
        },
    )
}

/// # Safety
/// The requirements of sendmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    answer(
        || refuse_fast_open(flags),
        || {
            // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right;
            // the arguments are the program's own, unchanged.
            unsafe { core::mem::transmute::<*mut c_void, Sendmsg>(SENDMSG.function())(fd, message, flags) }
        },
    )
}
