//! Sending a batch.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::Local;
use super::address::RawAddress;
use super::receive::last_errno;

/// Messages per system call.
const MOST: usize = 32;
/// Room for the control messages of one send: packet info and segment size.
const CONTROL_BYTES: usize = 64;

/// Datagrams that go out as one message.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Their bytes: of one datagram, or of several that the kernel cuts apart.
    pub parts: &'a [IoSlice<'a>],
    /// The length of each datagram but the last, which may be shorter (UDP_SEGMENT); `None`: it is one
    /// datagram.
    pub segment_bytes: Option<u16>,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Sends the first of `runs`, at most 32, to `to` (`None`: where the socket is connected to) and from `from`
/// (`None`: where it is bound). Returns how many were sent, at least one.
///
/// # Errors
/// The error of the first run, none of which was sent then: AGAIN, MSGSIZE or INVAL where the path can't
/// segment, CONNREFUSED for what was sent before.
pub fn send_runs(
    socket: BorrowedFd<'_>,
    to: Option<&SocketAddr>,
    from: Option<Local>,
    runs: &[Run<'_>],
) -> Result<usize, Errno> {
    let (mut name, name_len) = to.map_or((RawAddress::empty(), 0), RawAddress::new);
    let mut controls = [Control([0; CONTROL_BYTES]); MOST];
    // SAFETY: zeros are valid for mmsghdr: null pointers and zero lengths.
    let mut headers: [libc::mmsghdr; MOST] = unsafe { MaybeUninit::zeroed().assume_init() };
    let count = runs.len().min(MOST);
    for ((run, control), header) in runs.iter().zip(&mut controls).zip(&mut headers) {
        let header = &mut header.msg_hdr;
        if name_len > 0 {
            header.msg_name = ptr::from_mut(&mut name).cast();
            header.msg_namelen = name_len;
        }
        // IoSlice is guaranteed to be ABI compatible with iovec; sendmmsg only reads through it.
        header.msg_iov = run.parts.as_ptr().cast_mut().cast();
        header.msg_iovlen = run.parts.len() as _; // musl has other integers than glibc here
        header.msg_controllen = control.fill(run.segment_bytes, from) as _;
        if header.msg_controllen > 0 {
            header.msg_control = control.0.as_mut_ptr().cast();
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let length = libc::c_uint::try_from(count).unwrap_or(0);
    // SAFETY: the first `count` headers lead to `name`, to their own control and to the caller's slices, with
    // the lengths that they say; all of it outlives the call.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), length, flags as _) };
    usize::try_from(sent).map_err(|_| last_errno())
}

impl Control {
    /// Writes the messages and returns their length in bytes.
    fn fill(&mut self, segment_bytes: Option<u16>, from: Option<Local>) -> usize {
        let mut used = 0;
        if let Some(bytes) = segment_bytes {
            used += self.put(used, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
        }
        match from {
            Some(Local { ip: IpAddr::V4(ip), .. }) => {
                // in_pktinfo: the interface (any), the source (ipi_spec_dst), the destination (not used for
                // sending).
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                used += self.put(used, libc::SOL_IP, libc::IP_PKTINFO, &info);
            }
            Some(Local { ip: IpAddr::V6(ip), interface }) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                info[16..].copy_from_slice(&interface.to_ne_bytes());
                used += self.put(used, libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
            }
            None => {}
        }
        used
    }

    /// One control message at `offset` (8-aligned); returns the room it takes, padding included. cmsg(3): a
    /// header of length, level and type, the data, padding to the next multiple of a word.
    fn put(&mut self, offset: usize, level: libc::c_int, kind: libc::c_int, data: &[u8]) -> usize {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let message = &mut self.0[offset..offset + HEADER + data.len()];
        message[..size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        message[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        message[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER..].copy_from_slice(data);
        (HEADER + data.len()).next_multiple_of(size_of::<usize>())
    }
}
