//! Hooks for the C library functions that receive. A part of the border to C (see `hooks`), for answers that
//! carry a header back (`truepeer connect --udp-dialect spp`). The header is received into a separate part,
//! so that the program's buffer holds the same bytes as without the library.

use core::ffi::{c_int, c_uint, c_void};
use core::net::SocketAddr;
use core::time::Duration;
use std::time::Instant;

use libc::{iovec, mmsghdr, msghdr, sockaddr, sockaddr_storage, socklen_t, timespec};
use rustix::io::Errno;
use truepeer_handover::CARRIED_BYTES;

use crate::abi::{LOWEST, answer, borrow, by_kernel, read_address, word};
use crate::datagrams;
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

/// Finds the functions early, for the reasons given at `sending_hooks::find_all`.
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

/// Answers like [`answer`]. If the C library receives, it also notes an error that reports a missing
/// receiver.
fn hear<T: From<i8> + PartialEq>(
    fd: c_int,
    work: impl FnOnce() -> Option<Result<T, Errno>>,
    otherwise: impl FnOnce() -> T,
) -> T {
    answer(work, || {
        let received = otherwise();
        if received == T::from(-1) && last_errno() == Errno::CONNREFUSED {
            // It leaves errno unchanged.
            let note = || {
                datagrams::on_refused(borrow(fd)?);
                None
            };
            answer(note, || 0_i32);
        }
        received
    })
}

/// Receives a datagram and removes its header; `None` if this socket's datagrams have none.
///
/// # Safety
/// `message` is as recvmsg(2) requires, except that `parts` replaces its own parts.
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
    // SAFETY: sockaddr_storage consists of integers, for which zero is valid.
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
    // SAFETY: the kernel has written `msg_namelen` bytes to `name`, and the caller guarantees that `message`
    // has room for its name.
    let from = unsafe { pass_name_on(&name, behind.msg_namelen, message) };
    (message.msg_controllen, message.msg_flags) = (behind.msg_controllen, behind.msg_flags);
    let is_ours = received >= CARRIED_BYTES && datagrams::carries_ours(socket, from, &header);
    let own = if is_ours {
        received - CARRIED_BYTES
    } else {
        // SAFETY: the caller guarantees that each part points to as many writable bytes as its length, and
        // nothing else uses them during the call.
        let kept = unsafe { put_in_front(&header[..received.min(CARRIED_BYTES)], parts, received) };
        if kept < received {
            message.msg_flags |= libc::MSG_TRUNC;
        }
        if flags & libc::MSG_TRUNC == 0 { kept } else { received }
    };
    Some(Ok(isize::try_from(own).unwrap_or(isize::MAX)))
}

/// Writes the sender's address to the program's memory, as the kernel does.
///
/// # Safety
/// The first `length` bytes of `name` are an address, and `message` has as much room for it as it says.
unsafe fn pass_name_on(
    name: &sockaddr_storage,
    length: socklen_t,
    message: &mut msghdr,
) -> Option<SocketAddr> {
    if !message.msg_name.is_null() {
        let part = length.min(message.msg_namelen) as usize;
        // SAFETY: `name` holds `length` bytes, and the caller guarantees that `message` has as much room as
        // its `msg_namelen` says; the smaller of the two is copied.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const *name).cast::<u8>(), message.msg_name.cast(), part);
        }
        message.msg_namelen = length;
    }
    // SAFETY: the caller guarantees that the first `length` bytes of `name` are an address.
    unsafe { read_address((&raw const *name).cast(), length) }
}

/// A datagram without the header: moves its first bytes into the program's buffer, before the others. Returns
/// how many bytes there is room for.
///
/// # Safety
/// Each part points to as many writable bytes as its length.
unsafe fn put_in_front(first: &[u8], parts: &[iovec], received: usize) -> usize {
    let room: usize = parts.iter().map(|part| part.iov_len).sum();
    let mut bytes = first.to_vec();
    let mut left = received.saturating_sub(first.len()).min(room);
    for part in parts {
        let length = part.iov_len.min(left);
        // SAFETY: the caller guarantees that each part points to as many bytes as its length, and `length` is
        // not more than that.
        bytes.extend_from_slice(unsafe { parts_bytes(part, length) });
        left -= length;
    }
    bytes.truncate(room);
    let mut rest = bytes.as_slice();
    for part in parts {
        let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
        // SAFETY: the caller guarantees that each part points to as many writable bytes as its length, of
        // which `now` needs no more. `bytes` is a separate allocation, so the two don't overlap.
        unsafe { core::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
        rest = later;
    }
    bytes.len()
}

/// # Safety
/// The first `length` bytes of the part are readable, and nothing writes to them meanwhile.
unsafe fn parts_bytes(part: &iovec, length: usize) -> &[u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that the first `length` bytes of the part are readable and that nothing
    // writes to them meanwhile.
    unsafe { core::slice::from_raw_parts(part.iov_base.cast_const().cast(), length) }
}

/// Receives into one buffer.
///
/// # Safety
/// The requirements of recvfrom(2).
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
    // SAFETY: the caller guarantees, as recvfrom(2) requires, that `len` points to an integer if a name is
    // wanted.
    let room = if wants_name { unsafe { *len } } else { 0 };
    if room > socklen_t::MAX / 2 {
        return None;
    }
    let (part, mut message) = message(buffer, count, addr, room);
    // SAFETY: the caller guarantees, as recvfrom(2) requires, that `part` and the name in `message` have the
    // room that they say.
    let received = unsafe { receive(fd, &mut message, &[part], flags) };
    if wants_name && matches!(received, Some(Ok(_))) {
        // SAFETY: the caller guarantees, as recvfrom(2) requires, that `len` points to an integer if a name
        // is wanted.
        unsafe { *len = message.msg_namelen };
    }
    received
}

/// # Safety
/// The requirements of recvmsg(2).
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<Result<isize, Errno>> {
    if message.addr() < LOWEST {
        return None;
    }
    // SAFETY: the caller guarantees, as recvmsg(2) requires, that `message` points to a msghdr that nothing
    // else uses during the call.
    let message = unsafe { &mut *message };
    // SAFETY: the caller guarantees, as recvmsg(2) requires, that `msg_iov` points to `msg_iovlen` parts with
    // the room that they say.
    unsafe { receive(fd, message, parts_at(message.msg_iov, message.msg_iovlen)?, flags) }
}

/// # Safety
/// The requirements of recv(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize {
    // SAFETY: the caller guarantees, as recv(2) requires, that `buffer` has room for `count` bytes. No name
    // is wanted.
    let work =
        || unsafe { receive_into(fd, buffer, count, flags, core::ptr::null_mut(), core::ptr::null_mut()) };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Recv>(RECV.function())(fd, buffer, count, flags) }
    })
}

/// # Safety
/// The requirements of recv(2); `room` is the length of the buffer.
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
        // SAFETY: the caller guarantees that `buffer` has `room` bytes, and `count` is not more. A larger
        // `count` is left to the C library, which ends the program.
        (count <= room).then(|| unsafe { receive_into(fd, buffer, count, flags, no_name, no_length) })?
    };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe {
            core::mem::transmute::<*mut c_void, RecvChk>(RECV_CHK.function())(fd, buffer, count, room, flags)
        }
    })
}

/// # Safety
/// The requirements of recvfrom(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> isize {
    // SAFETY: the caller guarantees, as recvfrom(2) requires, that `buffer` has room for `count` bytes, and
    // that `addr` is null or points to `*len` writable bytes.
    let work = || unsafe { receive_into(fd, buffer, count, flags, addr, len) };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe {
            core::mem::transmute::<*mut c_void, Recvfrom>(RECVFROM.function())(
                fd, buffer, count, flags, addr, len,
            )
        }
    })
}

/// # Safety
/// The requirements of recvfrom(2); `room` is the length of the buffer.
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
        // SAFETY: the caller guarantees that `buffer` has `room` bytes, and `count` is not more; and that
        // `addr` is null or points to `*len` writable bytes. A larger `count` is left to the C
        // library, which ends the program.
        (count <= room).then(|| unsafe { receive_into(fd, buffer, count, flags, addr, len) })?
    };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe {
            core::mem::transmute::<*mut c_void, RecvfromChk>(RECVFROM_CHK.function())(
                fd, buffer, count, room, flags, addr, len,
            )
        }
    })
}

/// # Safety
/// The requirements of recvmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller guarantees, as recvmsg(2) requires, that `message` and everything that it points to
    // is valid.
    let work = || unsafe { receive_message(fd, message, flags) };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Recvmsg>(RECVMSG.function())(fd, message, flags) }
    })
}

/// # Safety
/// The requirements of recvmmsg(2).
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
        // SAFETY: the caller guarantees, as recvmmsg(2) requires, that `timeout` is null or points to a
        // timespec.
        let deadline =
            unsafe { timeout.as_ref() }.and_then(|limit| Instant::now().checked_add(length(limit)?));
        let (wait_for_one, mut flags) = (flags & libc::MSG_WAITFORONE != 0, flags & !libc::MSG_WAITFORONE);
        let mut done: c_int = 0;
        for number in 0..count.min(1024) as usize {
            // SAFETY: the caller guarantees, as recvmmsg(2) requires, that `messages` is an array of `count`
            // messages, and `number` is below `count`.
            let message = unsafe { messages.add(number) };
            // SAFETY: this message belongs to the array that the caller guarantees to be valid, and nothing
            // else uses it during the call.
            match unsafe { receive_message(fd, &raw mut (*message).msg_hdr, flags) }? {
                // SAFETY: this message belongs to the array that the caller guarantees to be valid and
                // writable.
                Ok(received) => unsafe { (*message).msg_len = c_uint::try_from(received).unwrap_or(0) },
                Err(errno) if done == 0 => return Some(Err(errno)),
                Err(_) => break,
            }
            done += 1;
            if wait_for_one {
                flags |= libc::MSG_DONTWAIT;
            }
            // The kernel, too, checks the time-out only after each datagram (recvmmsg(2), BUGS).
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
        }
        Some(Ok(done))
    };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
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
/// The requirements of read(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller guarantees, as read(2) requires, that `buffer` has room for `count` bytes.
    let work = || unsafe { read_into(fd, buffer, count) };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Read>(READ.function())(fd, buffer, count) }
    })
}

/// # Safety
/// The requirements of read(2); `room` is the length of the buffer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    room: usize,
) -> isize {
    // SAFETY: the caller guarantees that `buffer` has `room` bytes, and `count` is not more. A larger `count`
    // is left to the C library, which ends the program.
    let work = || (count <= room).then(|| unsafe { read_into(fd, buffer, count) })?;
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, ReadChk>(READ_CHK.function())(fd, buffer, count, room) }
    })
}

/// A read of 0 bytes takes no datagram.
///
/// # Safety
/// The requirements of read(2).
unsafe fn read_into(fd: c_int, buffer: *mut c_void, count: usize) -> Option<Result<isize, Errno>> {
    let (no_name, no_length) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: the caller guarantees, as read(2) requires, that `buffer` has room for `count` bytes. No name
    // is wanted.
    (count > 0).then(|| unsafe { receive_into(fd, buffer, count, 0, no_name, no_length) })?
}

/// # Safety
/// The requirements of readv(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> isize {
    let work = || {
        let (_, mut message) = message(core::ptr::null(), 0, core::ptr::null(), 0);
        // SAFETY: the caller guarantees, as readv(2) requires, that `parts` is an array of `count` parts.
        let parts = unsafe { parts_at(parts, usize::try_from(count).ok()?) }?;
        let takes_some = parts.iter().any(|part| part.iov_len > 0);
        // SAFETY: the caller guarantees, as readv(2) requires, that each part has the room that it says. The
        // message has no name and no control data.
        takes_some.then(|| unsafe { receive(fd, &mut message, parts, 0) })?
    };
    hear(fd, work, || {
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
        // arguments are the program's own, unchanged.
        unsafe { core::mem::transmute::<*mut c_void, Readv>(READV.function())(fd, parts, count) }
    })
}
