//! Calls that the library makes for a program that also has a supervisor. The filter passes them on to the
//! kernel: the mark is in the half of the descriptor's register that the kernel ignores
//! ([`Filter::rule_unless_marked`](crate::seccomp::Filter::rule_unless_marked)).
//!
//! Without the mark the supervisor would answer each of them: correctly, but ten times slower. A program that
//! marks its own calls harms only itself: it gets what the kernel has.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags};

use crate::seccomp::MARK;

static ON: AtomicBool = AtomicBool::new(false);

/// Marks all calls of this module from now on. Without a supervisor they are unmarked: other filters and
/// auditors see them, too.
pub fn begin() {
    ON.store(true, Ordering::Relaxed);
}

/// The register for a descriptor, with the mark if there is a supervisor.
#[must_use]
pub fn register(fd: RawFd) -> usize {
    let low = usize::try_from(fd.cast_unsigned()).unwrap_or_default();
    if ON.load(Ordering::Relaxed) { (MARK as usize) << 32 | low } else { low }
}

/// accept4(2).
///
/// # Errors
/// Those of accept4(2).
pub fn accept(
    listener: BorrowedFd<'_>,
    flags: SocketFlags,
) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
    if !ON.load(Ordering::Relaxed) {
        return rustix::net::acceptfrom_with(listener, flags);
    }
    let (raw, peer) = with_room(|address, length| {
        let flags = usize::try_from(flags.bits()).unwrap_or_default();
        call(libc::SYS_accept4, [register(listener.as_raw_fd()), address, length, flags, 0, 0])
    })?;
    let raw = RawFd::try_from(raw).map_err(|_| Errno::BADF)?;
    // SAFETY: OwnedFd requires an open descriptor without another owner: the kernel has just created this
    // one.
    Ok((unsafe { OwnedFd::from_raw_fd(raw) }, peer))
}

/// getpeername(2).
///
/// # Errors
/// Those of getpeername(2).
pub fn getpeername(socket: BorrowedFd<'_>) -> Result<Option<SocketAddrAny>, Errno> {
    if !ON.load(Ordering::Relaxed) {
        return rustix::net::getpeername(socket);
    }
    name_by(libc::SYS_getpeername, socket)
}

/// getsockname(2).
///
/// # Errors
/// Those of getsockname(2).
pub fn getsockname(socket: BorrowedFd<'_>) -> Result<SocketAddrAny, Errno> {
    if !ON.load(Ordering::Relaxed) {
        return rustix::net::getsockname(socket);
    }
    name_by(libc::SYS_getsockname, socket)?.ok_or(Errno::AFNOSUPPORT)
}

/// listen(2).
///
/// # Errors
/// Those of listen(2).
pub fn listen(socket: BorrowedFd<'_>, backlog: i32) -> Result<(), Errno> {
    let backlog = usize::try_from(backlog.cast_unsigned()).unwrap_or_default();
    call(libc::SYS_listen, [register(socket.as_raw_fd()), backlog, 0, 0, 0, 0]).map(drop)
}

/// In the upper half of listen()'s backlog, which the kernel ignores: the supervisor is asked to wake whoever
/// waits for this listener.
const WAKE: u32 = 0x7761_6b65;

/// Asks the supervisor to wake the program's processes and threads that wait for this listener. `backlog` is
/// the listener's, because the kernel carries the call out if another supervisor does not know it.
///
/// # Errors
/// ENOSYS without a supervisor.
pub fn ask_to_wake(listener: RawFd, backlog: i32) -> Result<(), Errno> {
    if !ON.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    let fd = usize::try_from(listener.cast_unsigned()).unwrap_or_default();
    let backlog = usize::try_from(backlog.cast_unsigned()).unwrap_or_default();
    call(libc::SYS_listen, [fd, (WAKE as usize) << 32 | backlog, 0, 0, 0, 0]).map(drop)
}

/// Whether the backlog of an unmarked listen() is that of [`ask_to_wake`].
#[must_use]
pub fn asks_to_wake(backlog: u64) -> bool {
    backlog >> 32 == u64::from(WAKE)
}

/// connect(2).
///
/// # Errors
/// Those of connect(2).
pub fn connect(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
    let to = to.as_any();
    let length = usize::try_from(to.addr_len()).unwrap_or_default();
    let words = [register(socket.as_raw_fd()), to.as_ptr().addr(), length, 0, 0, 0];
    call(libc::SYS_connect, words).map(drop)
}

/// sendto(2).
///
/// # Errors
/// Those of sendto(2).
pub fn sendto(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    flags: SendFlags,
    to: SocketAddr,
) -> Result<usize, Errno> {
    let to = to.as_any();
    let flags = usize::try_from(flags.bits()).unwrap_or_default();
    let length = usize::try_from(to.addr_len()).unwrap_or_default();
    let (socket, start) = (register(socket.as_raw_fd()), bytes.as_ptr().addr());
    call(libc::SYS_sendto, [socket, start, bytes.len(), flags, to.as_ptr().addr(), length])
}

fn name_by(number: libc::c_long, socket: BorrowedFd<'_>) -> Result<Option<SocketAddrAny>, Errno> {
    let named =
        with_room(|address, length| call(number, [register(socket.as_raw_fd()), address, length, 0, 0, 0]));
    named.map(|(_, name)| name)
}

/// Gives a call the addresses of a `sockaddr_storage` and of its length, and reads what the kernel has
/// written.
fn with_room(
    ask: impl FnOnce(usize, usize) -> Result<usize, Errno>,
) -> Result<(usize, Option<SocketAddrAny>), Errno> {
    let mut storage = MaybeUninit::<SocketAddrStorage>::zeroed();
    let whole = libc::socklen_t::try_from(size_of::<SocketAddrStorage>()).unwrap_or_default();
    let mut length = whole;
    let answer = ask(storage.as_mut_ptr().expose_provenance(), (&raw mut length).expose_provenance())?;
    if length < FAMILY_BYTES || length > whole {
        return Ok((answer, None)); // an unnamed socket
    }
    // SAFETY: all of `storage` is initialised, by zeros first, and the kernel has written an address of
    // `length` bytes, which lies between a family's and the storage's size.
    Ok((answer, Some(unsafe { SocketAddrAny::new(storage, length) })))
}

const FAMILY_BYTES: libc::socklen_t = 2;

/// Makes a system call whose arguments are those of the functions above.
fn call(number: libc::c_long, words: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: this function is private. Each caller passes a call's number and its arguments: pointers to
    // locals or borrowed memory that outlive the call, with the length that the kernel may read or write.
    let answer = unsafe { libc::syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]) };
    usize::try_from(answer)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn the_kernel_ignores_the_mark() {
        begin();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(listener.as_fd(), 7).unwrap();
        let to = listener.local_addr().unwrap();
        let stream = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        connect(stream.as_fd(), to).unwrap();
        let (accepted, peer) = accept(listener.as_fd(), SocketFlags::CLOEXEC).unwrap();
        let own = SocketAddr::try_from(getsockname(stream.as_fd()).unwrap()).unwrap();
        assert_eq!(SocketAddr::try_from(peer.unwrap()).unwrap(), own);
        assert_eq!(SocketAddr::try_from(getpeername(accepted.as_fd()).unwrap().unwrap()).unwrap(), own);
        assert_eq!(SocketAddr::try_from(getsockname(accepted.as_fd()).unwrap()).unwrap(), to);
        assert_eq!(getpeername(listener.as_fd()).unwrap_err(), Errno::NOTCONN);
        assert_eq!(connect(stream.as_fd(), to), Err(Errno::ISCONN));
        assert_eq!(register(-1) & 0xffff_ffff, 0xffff_ffff);
    }
}
