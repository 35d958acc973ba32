//! The segments of a TCP connection: the one that opened it, and a filter for those that are still to come.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::repair::set_int;

/// An instruction of classic BPF (linux/filter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// How many instructions a jump passes over if its condition is true.
    pub jt: u8,
    /// The same if it is false.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// `libc::sock_fprog` with our [`Instruction`].
#[repr(C)]
struct Program {
    len: u16,
    first: *const Instruction,
}

const _: () = assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>());
const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());

/// Lets the kernel run `program` for each segment, from its TCP header on. Where it returns 0 the segment is
/// dropped before TCP sees it, so its sender repeats it. It replaces the socket's filter (SO_ATTACH_FILTER).
///
/// # Errors
/// EPERM if the program has locked its filter, and without CAP_NET_ADMIN on kernels since August 2026;
/// ENOMEM.
pub fn attach_filter(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = Program { len, first: program.as_ptr() };
    let size = libc::socklen_t::try_from(size_of::<Program>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads a sock_fprog, which Program equals, and the `len` instructions it points to;
    // both outlive the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes the socket's filter.
pub fn detach_filter(socket: BorrowedFd<'_>) {
    // ENOENT: there is none.
    let _ = set_int(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}

/// The number of instructions of the socket's filter; 0 without one.
#[must_use]
pub fn filter_len(socket: BorrowedFd<'_>) -> usize {
    let mut len: libc::socklen_t = 0;
    // SAFETY: with a length of 0 the kernel writes nothing but the number to `len`, which outlives the call.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            std::ptr::null_mut(),
            &raw mut len,
        )
    };
    if answer == 0 { usize::try_from(len).unwrap_or_default() } else { 0 }
}

/// Lets the kernel keep the SYN of each connection that `listener` gets, for [`first_byte`] (TCP_SAVE_SYN).
///
/// # Errors
/// EOPNOTSUPP for an MPTCP listener.
pub fn save_syn(listener: BorrowedFd<'_>) -> io::Result<()> {
    set_int(listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1)
}

/// The sequence number of the first byte that a connection's peer sends, by the saved SYN, which the kernel
/// then forgets (TCP_SAVED_SYN). `None` if it has none: the listener did not save it, or the kernel was
/// answering by SYN cookies.
#[must_use]
pub fn first_byte(connection: BorrowedFd<'_>) -> Option<u32> {
    let mut headers = [0_u8; 256];
    let mut len: libc::socklen_t = 256;
    // SAFETY: the kernel writes at most `len` bytes, which is the length of the local.
    let answer = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            headers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let len = usize::try_from(len).ok().filter(|_| answer == 0)?;
    first_byte_after(headers.get(..len)?)
}

/// By the IP and TCP headers of a SYN.
fn first_byte_after(headers: &[u8]) -> Option<u32> {
    const TCP: u8 = 6;
    let first = *headers.first()?;
    let tcp = match first >> 4 {
        4 => usize::from(first & 0xF) * 4,
        6 if *headers.get(6)? == TCP => 40,
        _ => return None,
    };
    let number = u32::from_be_bytes(headers.get(tcp + 4..tcp + 8)?.try_into().ok()?);
    Some(number.wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_first_byte_follows_the_syn() {
        let mut v4 = [0_u8; 24 + 20];
        v4[0] = 0x46;
        v4[24 + 4..24 + 8].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(first_byte_after(&v4), Some(0));
        let mut v6 = [0_u8; 60];
        (v6[0], v6[6], v6[47]) = (0x60, 6, 9);
        assert_eq!(first_byte_after(&v6), Some(10));
        v6[6] = 0;
        assert_eq!(first_byte_after(&v6), None, "an extension header");
        for len in 0..28 {
            assert_eq!(first_byte_after(&v4[..len]), None);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
    fn a_filter_is_counted_and_removed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        save_syn(listener.as_fd()).unwrap();
        let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let socket = accepted.as_fd();
        assert!(first_byte(socket).is_some());
        assert_eq!(first_byte(socket), None, "the kernel has forgotten it");
        let pass = Instruction { code: 6, jt: 0, jf: 0, k: u32::MAX };
        assert_eq!(filter_len(socket), 0);
        attach_filter(socket, &[pass]).unwrap();
        assert_eq!(filter_len(socket), 1);
        detach_filter(socket);
        assert_eq!(filter_len(socket), 0);
    }
}
