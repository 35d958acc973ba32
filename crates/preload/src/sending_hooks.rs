//! Hooks for the C library functions that send. A part of the border to C (see `hooks`), for `truepeer
//! connect`.
//!
//! Sends that need no header go to the C library's own function, which remains a cancellation point.

use core::ffi::{c_int, c_uint, c_void};
use core::slice;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use rustix::io::Errno;
use truepeer_handover::{Own, SendRequest};

use crate::abi::{LOWEST, answer, borrow, by_kernel, read_address, word};
use crate::datagrams;
use crate::next::Next;
use crate::parts::with_first;
use crate::role::role;

static SEND: Next = Next::new(c"send");
static SENDTO: Next = Next::new(c"sendto");
static SENDMSG: Next = Next::new(c"sendmsg");
static SENDMMSG: Next = Next::new(c"sendmmsg");
static WRITE: Next = Next::new(c"write");
static WRITEV: Next = Next::new(c"writev");
static SETSOCKOPT: Next = Next::new(c"setsockopt");

/// Finds all functions early: dlsym(3) may take locks, and write() is called in signal handlers and after
/// fork().
pub(crate) fn find_all() {
    for next in [&SEND, &SENDTO, &SENDMSG, &SENDMMSG, &WRITE, &WRITEV, &SETSOCKOPT] {
        next.function();
    }
}

type Send = unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize;
type Sendto = unsafe extern "C" fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
type Sendmsg = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> isize;
type Sendmmsg = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type Writev = unsafe extern "C" fn(c_int, *const iovec, c_int) -> isize;
type Setsockopt = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;

/// MSG_FASTOPEN would send the program's data before the header. It is refused, and programs then connect as
/// usual.
fn is_fast_open(flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && role().is_some_and(|role| role.sending.is_some())
}

/// A message of one part.
pub(crate) fn message(
    bytes: *const c_void,
    count: usize,
    addr: *const sockaddr,
    len: socklen_t,
) -> (iovec, msghdr) {
    // SAFETY: msghdr consists of integers and pointers, for which zero is valid.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_name = addr.cast_mut().cast();
    message.msg_namelen = if addr.is_null() { 0 } else { len };
    (iovec { iov_base: bytes.cast_mut(), iov_len: count }, message)
}

/// Sends a message with its header before it, and returns how many of the program's own bytes were sent.
/// `None` if it needs no header, or if the kernel must refuse it.
///
/// # Safety
/// `message` is as sendmsg(2) requires, except that `parts` replaces its own parts.
unsafe fn send_told(
    fd: c_int,
    message: &msghdr,
    parts: &[iovec],
    flags: c_int,
) -> Option<Result<isize, Errno>> {
    let socket = borrow(fd)?;
    if !datagrams::is_meant(socket) {
        return None;
    }
    let to = if message.msg_name.is_null() || message.msg_namelen == 0 {
        None
    } else {
        // SAFETY: the caller guarantees, as sendmsg(2) requires, that `msg_name` is null or points to
        // `msg_namelen` readable bytes.
        Some(unsafe { read_address(message.msg_name.cast_const().cast(), message.msg_namelen) }?)
    };
    let control = if message.msg_control.addr() < LOWEST {
        &[]
    } else {
        // SAFETY: the caller guarantees, as sendmsg(2) requires, that `msg_control` points to
        // `msg_controllen` readable bytes; it is not null here.
        unsafe {
            slice::from_raw_parts(message.msg_control.cast_const().cast::<u8>(), message.msg_controllen)
        }
    };
    let mut send = |header: &[u8], own: Own| {
        let parts = if own == Own::Behind { parts } else { &[] };
        send_behind(fd, header, message, parts, flags)
    };
    let sent = datagrams::send(socket, &SendRequest { to, control, flags }, &mut send)?;
    Some(sent.map(|sent| isize::try_from(sent).unwrap_or(isize::MAX)))
}

fn send_behind(
    fd: c_int,
    header: &[u8],
    message: &msghdr,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    let first = iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() };
    let sent = with_first(first, parts, |all| {
        let told = msghdr { msg_iov: all.as_mut_ptr(), msg_iovlen: all.len(), ..*message };
        by_kernel(libc::SYS_sendmsg, [word(fd), (&raw const told) as usize, word(flags), 0, 0, 0])
    })?;
    usize::try_from(sent).map_err(|_| last_errno())
}

/// The error of the C library's last call in this thread.
pub(crate) fn last_errno() -> Errno {
    // SAFETY: __errno_location has no requirements. It returns the calling thread's errno, valid as long as
    // the thread lives.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// # Safety
/// The requirements of sendmsg(2). The kernel refuses parts with bad addresses.
unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<Result<isize, Errno>> {
    if message.addr() < LOWEST {
        return None;
    }
    // SAFETY: the caller guarantees, as sendmsg(2) requires, that `message` points to a msghdr that stays
    // unchanged during the call.
    let message = unsafe { &*message };
    // SAFETY: the caller guarantees, as sendmsg(2) requires, that `msg_iov` points to `msg_iovlen` parts.
    unsafe { send_told(fd, message, parts_at(message.msg_iov, message.msg_iovlen)?, flags) }
}

/// `None` for addresses that can't be mapped.
///
/// # Safety
/// `parts` is an array of `count` parts.
pub(crate) unsafe fn parts_at<'a>(parts: *const iovec, count: usize) -> Option<&'a [iovec]> {
    match count {
        0 => Some(&[]),
        _ if parts.addr() < LOWEST => None,
        // SAFETY: the caller guarantees that `parts` is an array of `count` parts.
        count => Some(unsafe { slice::from_raw_parts(parts, count) }),
    }
}

/// # Safety
/// The requirements of send(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, count: usize, flags: c_int) -> isize {
    let work = || {
        let (part, message) = message(bytes, count, core::ptr::null(), 0);
        // SAFETY: the message has no name and no control data, and the caller guarantees, as send(2)
        // requires, that its part points to `count` readable bytes.
        unsafe { send_told(fd, &message, &[part], flags) }
    };
    answer(work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Send>(SEND.function())(fd, bytes, count, flags) }
    })
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
    let work = || {
        let (part, message) = message(bytes, count, addr, len);
        // SAFETY: the caller guarantees, as sendto(2) requires, that `bytes` points to `count` readable
        // bytes, and `addr` is null or points to `len` readable bytes.
        let told = unsafe { send_told(fd, &message, &[part], flags) };
        told.or_else(|| is_fast_open(flags).then_some(Err(Errno::OPNOTSUPP)))
    };
    answer(work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe {
            core::mem::transmute::<*mut c_void, Sendto>(SENDTO.function())(fd, bytes, count, flags, addr, len)
        }
    })
}

/// # Safety
/// The requirements of sendmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    let work = || {
        // SAFETY: the caller guarantees, as sendmsg(2) requires, that `message` and everything that it points
        // to is valid.
        let told = unsafe { send_message(fd, message, flags) };
        told.or_else(|| is_fast_open(flags).then_some(Err(Errno::OPNOTSUPP)))
    };
    answer(work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Sendmsg>(SENDMSG.function())(fd, message, flags) }
    })
}

/// # Safety
/// The requirements of sendmmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
    // arguments are the program's own, or one message of its array.
    let plainly = |messages, count| unsafe {
        core::mem::transmute::<*mut c_void, Sendmmsg>(SENDMMSG.function())(fd, messages, count, flags)
    };
    let work = || {
        if messages.addr() < LOWEST || !borrow(fd).is_some_and(datagrams::is_meant) {
            return None;
        }
        let mut done: c_int = 0;
        for number in 0..count.min(1024) as usize {
            // SAFETY: the caller guarantees, as sendmmsg(2) requires, that `messages` is an array of `count`
            // messages, and `number` is below `count`.
            let message = unsafe { messages.add(number) };
            // SAFETY: this message belongs to the array that the caller guarantees to be valid, and nothing
            // else uses it during the call.
            match unsafe { send_message(fd, &raw const (*message).msg_hdr, flags) } {
                // SAFETY: this message belongs to the array that the caller guarantees to be valid and
                // writable.
                Some(Ok(sent)) => unsafe { (*message).msg_len = c_uint::try_from(sent).unwrap_or(0) },
                Some(Err(errno)) if done == 0 => return Some(Err(errno)),
                Some(Err(_)) => break,
                None if plainly(message, 1) == 1 => {}
                // The kernel has just set errno.
                None if done == 0 => return None,
                None => break,
            }
            done += 1;
        }
        Some(Ok(done))
    };
    answer(work, || plainly(messages, count))
}

/// # Safety
/// The requirements of write(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    let work = || {
        let (part, message) = message(bytes, count, core::ptr::null(), 0);
        // SAFETY: the message has no name and no control data, and the caller guarantees, as write(2)
        // requires, that its part points to `count` readable bytes.
        unsafe { send_told(fd, &message, &[part], 0) }
    };
    answer(work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Write>(WRITE.function())(fd, bytes, count) }
    })
}

/// # Safety
/// The requirements of writev(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> isize {
    let work = || {
        let (_, message) = message(core::ptr::null(), 0, core::ptr::null(), 0);
        // SAFETY: the caller guarantees, as writev(2) requires, that `parts` is an array of `count` parts.
        let parts = unsafe { parts_at(parts, usize::try_from(count).ok()?)? };
        // Unlike the other calls, writev() of nothing sends no empty datagram.
        let is_empty = parts.iter().all(|part| part.iov_len == 0);
        // SAFETY: the message has no name and no control data, and the caller guarantees, as writev(2)
        // requires, that each part points to as many readable bytes as its length.
        (!is_empty).then(|| unsafe { send_told(fd, &message, parts, 0) })?
    };
    answer(work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Writev>(WRITEV.function())(fd, parts, count) }
    })
}

/// UDP_SEGMENT turns one call into several datagrams, and UDP_CORK several calls into one. Each datagram
/// would need a header, so these options fail as on a kernel without them.
///
/// # Safety
/// The requirements of setsockopt(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let work = || {
        let is_refused = level == libc::SOL_UDP
            && matches!(name, libc::UDP_CORK | libc::UDP_SEGMENT | libc::UDP_GRO)
            && datagrams::is_meant(borrow(fd)?);
        is_refused.then_some(Err(Errno::NOPROTOOPT))
    };
    answer(work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe {
            core::mem::transmute::<*mut c_void, Setsockopt>(SETSOCKOPT.function())(
                fd, level, name, value, len,
            )
        }
    })
}
