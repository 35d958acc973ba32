//! The functions of the C library that receive: the part of the border to C (see `hooks`) for answers that carry a header
//! back (`truepeer connect --udp-dialect spp`). It is received apart from what is behind it, so that the program's own room
//! holds what it would hold without us.

use core::ffi::{c_int, c_uint, c_void};
use core::net::SocketAddr;
use core::time::Duration;
use std::time::Instant;

use libc::{iovec, mmsghdr, msghdr, sockaddr, sockaddr_storage, socklen_t, timespec};
use rustix::io::Errno;
use truepeer_handover::CARRIED_BYTES;

use crate::datagrams;
use crate::hooks::{LOWEST, answer, borrow, by_kernel, read_address, word};
use crate::next::Next;
use crate::parts::with_first;
use crate::sending_hooks::{last_errno, message, parts_at};

static RECV: Next = Next::new(c"recv");
static RECVFROM: Next = Next::new(c"recvfrom");
static RECVMSG: Next = Next::new(c"recvmsg");
static RECVMMSG: Next = Next::new(c"recvmmsg");
static READ: Next = Next::new(c"read");
static READV: Next = Next::new(c"readv");
static RECV_CHK: Next = Next::new(c"__recv_chk");
static RECVFROM_CHK: Next = Next::new(c"__recvfrom_chk");
static READ_CHK: Next = Next::new(c"__read_chk");

/// As `sending_hooks` does.
pub(crate) fn find_all() {
    let all = [&RECV, &RECVFROM, &RECVMSG, &RECVMMSG, &READ, &READV, &RECV_CHK, &RECVFROM_CHK, &READ_CHK];
    for next in all {
        next.function();
    }
}

type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
type Recvfrom =
    unsafe extern "C" fn(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> isize;
type Recvmsg = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> isize;
type Recvmmsg = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type Readv = unsafe extern "C" fn(c_int, *const iovec, c_int) -> isize;
type RecvChk = unsafe extern "C" fn(c_int, *mut c_void, usize, usize, c_int) -> isize;
type RecvfromChk =
    unsafe extern "C" fn(c_int, *mut c_void, usize, usize, c_int, *mut sockaddr, *mut socklen_t) -> isize;
type ReadChk = unsafe extern "C" fn(c_int, *mut c_void, usize, usize) -> isize;

/// As [`answer`]; and hears, where it is the C library that receives, that nobody was there for a flow's last datagram.
fn hear<T: From<i8> + PartialEq>(
    fd: c_int,
    work: impl FnOnce() -> Option<Result<T, Errno>>,
    otherwise: impl FnOnce() -> T,
) -> T {
    answer(work, || {
        let received = otherwise();
        if received == T::from(-1) && last_errno() == Errno::CONNREFUSED {
            // It leaves errno as it is.
            let note = || {
                datagrams::on_refused(borrow(fd)?);
                None
            };
            answer(note, || 0_i32);
        }
        received
    })
}

/// Receives a datagram without its header; `None` where there is none to be taken off.
///
/// # Safety
/// `message` has what recvmsg(2) says, but for its parts, which are `parts`.
unsafe fn receive(
    fd: c_int,
    message: &mut msghdr,
    parts: &[iovec],
    flags: c_int,
) -> Option<Result<isize, Errno>> {
    let socket = borrow(fd)?;
    if !datagrams::is_carried_back(socket) {
        return None;
    }
    let mut header = [0_u8; CARRIED_BYTES];
    // SAFETY: the struct is numbers, for which zero is a value.
    let mut name: sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut behind = msghdr {
        msg_name: (&raw mut name).cast(),
        msg_namelen: socklen_t::try_from(size_of::<sockaddr_storage>()).unwrap_or(0),
        ..*message
    };
    let first = iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() };
    let received = with_first(first, parts, |all| {
        (behind.msg_iov, behind.msg_iovlen) = (all.as_mut_ptr(), all.len());
        by_kernel(libc::SYS_recvmsg, [word(fd), (&raw mut behind) as usize, word(flags), 0, 0, 0])
    });
    let received = match received.map(usize::try_from) {
        Ok(Ok(received)) => received,
        Ok(Err(_)) => return Some(Err(last_errno())),
        Err(errno) => return Some(Err(errno)),
    };
    // SAFETY: the kernel has written that much of a name; the room is as long as the caller promises.
    let from = unsafe { pass_name_on(&name, behind.msg_namelen, message) };
    (message.msg_controllen, message.msg_flags) = (behind.msg_controllen, behind.msg_flags);
    let is_ours = received >= CARRIED_BYTES && datagrams::carries_ours(socket, from, &header);
    let own = if is_ours {
        received - CARRIED_BYTES
    } else {
        // SAFETY: the caller's promise: each part has its length, and the kernel has just written to them.
        let kept = unsafe { put_in_front(&header[..received.min(CARRIED_BYTES)], parts, received) };
        if kept < received {
            message.msg_flags |= libc::MSG_TRUNC;
        }
        if flags & libc::MSG_TRUNC == 0 { kept } else { received }
    };
    Some(Ok(isize::try_from(own).unwrap_or(isize::MAX)))
}

/// Writes the sender's address where the program wants it, as the kernel does.
///
/// # Safety
/// `length` bytes of `name` are an address, and `message` has room for as much as it says.
unsafe fn pass_name_on(
    name: &sockaddr_storage,
    length: socklen_t,
    message: &mut msghdr,
) -> Option<SocketAddr> {
    if !message.msg_name.is_null() {
        let part = length.min(message.msg_namelen) as usize;
        // SAFETY: the caller's promise; both are at least that long.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const *name).cast::<u8>(), message.msg_name.cast(), part);
        }
        message.msg_namelen = length;
    }
    // SAFETY: the caller's promise.
    unsafe { read_address((&raw const *name).cast(), length) }
}

/// A datagram without our header: its first bytes go to the program as well, and the others behind them. How many there is
/// room for.
///
/// # Safety
/// Each part may be written to.
unsafe fn put_in_front(first: &[u8], parts: &[iovec], received: usize) -> usize {
    let room: usize = parts.iter().map(|part| part.iov_len).sum();
    let mut bytes = first.to_vec();
    let mut left = received.saturating_sub(first.len()).min(room);
    for part in parts {
        let length = part.iov_len.min(left);
        // SAFETY: the caller's promise: so many bytes lie there.
        bytes.extend_from_slice(unsafe { parts_bytes(part, length) });
        left -= length;
    }
    bytes.truncate(room);
    let mut rest = bytes.as_slice();
    for part in parts {
        let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
        // SAFETY: the caller's promise; `bytes` is memory of our own.
        unsafe { core::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
        rest = later;
    }
    bytes.len()
}

/// # Safety
/// `length` bytes of the part may be read, and nobody writes to them meanwhile.
unsafe fn parts_bytes(part: &iovec, length: usize) -> &[u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(part.iov_base.cast_const().cast(), length) }
}

/// Into one buffer.
///
/// # Safety
/// As recvfrom(2).
unsafe fn receive_into(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<Result<isize, Errno>> {
    let wants_name = !addr.is_null();
    if wants_name && len.addr() < LOWEST {
        return None;
    }
    // SAFETY: the caller's promise.
    let room = if wants_name { unsafe { *len } } else { 0 };
    if room > socklen_t::MAX / 2 {
        return None;
    }
    let (part, mut message) = message(buffer, count, addr, room);
    // SAFETY: the caller's promise.
    let received = unsafe { receive(fd, &mut message, &[part], flags) };
    if wants_name && matches!(received, Some(Ok(_))) {
        // SAFETY: the caller's promise.
        unsafe { *len = message.msg_namelen };
    }
    received
}

/// # Safety
/// As recvmsg(2).
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<Result<isize, Errno>> {
    if message.addr() < LOWEST {
        return None;
    }
    // SAFETY: the caller's promise; what it points to lives as long as the call.
    let message = unsafe { &mut *message };
    // SAFETY: the same promise.
    unsafe { receive(fd, message, parts_at(message.msg_iov, message.msg_iovlen)?, flags) }
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let work =
        || unsafe { receive_into(fd, buffer, count, flags, core::ptr::null_mut(), core::ptr::null_mut()) };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe { core::mem::transmute::<*mut c_void, Recv>(RECV.function())(fd, buffer, count, flags) }
    })
}

/// # Safety
/// As recv(2); `room` is the buffer's length.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    room: usize,
    flags: c_int,
) -> isize {
    let work = || {
        let (no_name, no_length) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the caller's promise. What is too long is for the C library to end the program for.
        (count <= room).then(|| unsafe { receive_into(fd, buffer, count, flags, no_name, no_length) })?
    };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe {
            core::mem::transmute::<*mut c_void, RecvChk>(RECV_CHK.function())(fd, buffer, count, room, flags)
        }
    })
}

/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> isize {
    // SAFETY: the caller's promise.
    let work = || unsafe { receive_into(fd, buffer, count, flags, addr, len) };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe {
            core::mem::transmute::<*mut c_void, Recvfrom>(RECVFROM.function())(
                fd, buffer, count, flags, addr, len,
            )
        }
    })
}

/// # Safety
/// As recvfrom(2); `room` is the buffer's length.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    room: usize,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> isize {
    let work = || {
        // SAFETY: the caller's promise. What is too long is for the C library to end the program for.
        (count <= room).then(|| unsafe { receive_into(fd, buffer, count, flags, addr, len) })?
    };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe {
            core::mem::transmute::<*mut c_void, RecvfromChk>(RECVFROM_CHK.function())(
                fd, buffer, count, room, flags, addr, len,
            )
        }
    })
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let work = || unsafe { receive_message(fd, message, flags) };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe { core::mem::transmute::<*mut c_void, Recvmsg>(RECVMSG.function())(fd, message, flags) }
    })
}

/// # Safety
/// As recvmmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let work = || {
        if messages.addr() < LOWEST || !borrow(fd).is_some_and(datagrams::is_carried_back) {
            return None;
        }
        // SAFETY: the caller's promise.
        let deadline =
            unsafe { timeout.as_ref() }.and_then(|limit| Instant::now().checked_add(length(limit)?));
        let (wait_for_one, mut flags) = (flags & libc::MSG_WAITFORONE != 0, flags & !libc::MSG_WAITFORONE);
        let mut done: c_int = 0;
        for number in 0..count.min(1024) as usize {
            // SAFETY: the caller's promise: so many messages lie there.
            let message = unsafe { messages.add(number) };
            // SAFETY: the caller's promise: this message is one of the array's, and nobody else uses it during the call.
            match unsafe { receive_message(fd, &raw mut (*message).msg_hdr, flags) }? {
                // SAFETY: the same message; its length is a field that the kernel would write, for the caller to read.
                Ok(received) => unsafe { (*message).msg_len = c_uint::try_from(received).unwrap_or(0) },
                Err(errno) if done == 0 => return Some(Err(errno)),
                Err(_) => break,
            }
            done += 1;
            if wait_for_one {
                flags |= libc::MSG_DONTWAIT;
            }
            // As the kernel does: it looks at the clock after each datagram only (recvmmsg(2), BUGS).
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
        }
        Some(Ok(done))
    };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe {
            core::mem::transmute::<*mut c_void, Recvmmsg>(RECVMMSG.function())(
                fd, messages, count, flags, timeout,
            )
        }
    })
}

fn length(limit: &timespec) -> Option<Duration> {
    Some(Duration::new(u64::try_from(limit.tv_sec).ok()?, u32::try_from(limit.tv_nsec).ok()?))
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's promise.
    let work = || unsafe { read_into(fd, buffer, count) };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe { core::mem::transmute::<*mut c_void, Read>(READ.function())(fd, buffer, count) }
    })
}

/// # Safety
/// As read(2); `room` is the buffer's length.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    room: usize,
) -> isize {
    // SAFETY: the caller's promise. What is too long is for the C library to end the program for.
    let work = || (count <= room).then(|| unsafe { read_into(fd, buffer, count) })?;
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe { core::mem::transmute::<*mut c_void, ReadChk>(READ_CHK.function())(fd, buffer, count, room) }
    })
}

/// Reading nothing takes no datagram.
///
/// # Safety
/// As read(2).
unsafe fn read_into(fd: c_int, buffer: *mut c_void, count: usize) -> Option<Result<isize, Errno>> {
    let (no_name, no_length) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: the caller's promise.
    (count > 0).then(|| unsafe { receive_into(fd, buffer, count, 0, no_name, no_length) })?
}

/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> isize {
    let work = || {
        let (_, mut message) = message(core::ptr::null(), 0, core::ptr::null(), 0);
        // SAFETY: the caller's promise; a message without a name and control data.
        let parts = unsafe { parts_at(parts, usize::try_from(count).ok()?) }?;
        let takes_some = parts.iter().any(|part| part.iov_len > 0);
        // SAFETY: the same promise.
        takes_some.then(|| unsafe { receive(fd, &mut message, parts, 0) })?
    };
    hear(fd, work, || {
        // SAFETY: the function of that name, with the program's own arguments.
        unsafe { core::mem::transmute::<*mut c_void, Readv>(READV.function())(fd, parts, count) }
    })
}
