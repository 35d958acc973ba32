//! Receiving a batch.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::address::{ROOM, RawAddress, decode_v4, decode_v6};
use super::{LONGEST_DATAGRAM, Local};

/// Room for the control messages of one receive: packet info, original destination, GRO size.
const CONTROL_BYTES: usize = 192;
/// From one buffer to the next: a little more than the longest datagram, and no multiple of a power of two, so that
/// the beginnings of a batch don't all fall into the same few cache lines.
const STRIDE: usize = LONGEST_DATAGRAM + 1 + 192;

/// One receive of a batch: a datagram, or several of equal size that the kernel has merged (UDP_GRO).
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The payload; several datagrams one after the other if `segment_bytes` is less than its length.
    pub bytes: &'a [u8],
    /// The length of each datagram in it but the last, which may be shorter.
    pub segment_bytes: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// What it was sent to, if the socket reports it.
    pub local: Option<Local>,
    /// The address and port before TPROXY, if the socket reports it.
    pub original_destination: Option<SocketAddr>,
}

impl<'a> Arrival<'a> {
    /// The datagrams in it, one by one. An empty datagram is one, too.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, size) = (self.bytes, self.segment_bytes.max(1));
        let count = bytes.len().div_ceil(size).max(1);
        (0..count).map(move |number| &bytes[number * size..bytes.len().min((number + 1) * size)])
    }
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Buffers for a batch of receives, used again and again.
pub struct Received {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[RawAddress]>,
    controls: Box<[Control]>,
    buffer: Box<[u8]>,
    count: usize,
}

// SAFETY: the raw pointers inside `headers` and `parts` lead only into the boxes beside them, which move along and
// belong to nobody else.
unsafe impl Send for Received {}

impl Received {
    /// Room for `most` receives at once, 64 KiB each; memory is used only where datagrams have been.
    #[must_use]
    pub fn with_room_for(most: usize) -> Self {
        // SAFETY: zeros are valid for mmsghdr and iovec: null pointers and zero lengths.
        let (header, part) =
            unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        let mut received = Self {
            headers: vec![header; most].into(),
            parts: vec![part; most].into(),
            names: vec![RawAddress::empty(); most].into(),
            controls: vec![Control([0; CONTROL_BYTES]); most].into(),
            buffer: vec![0; most * STRIDE].into(),
            count: 0,
        };
        received.connect_pointers();
        received
    }

    /// The boxes never grow or move their contents, so this holds for their whole life.
    fn connect_pointers(&mut self) {
        let buffers = self.buffer.chunks_exact_mut(STRIDE);
        let rooms = self.names.iter_mut().zip(self.controls.iter_mut()).zip(self.parts.iter_mut());
        for ((buffer, ((name, control), part)), header) in buffers.zip(rooms).zip(self.headers.iter_mut()) {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = LONGEST_DATAGRAM;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        }
    }

    /// Receives what is there, at most the room; returns how many receives that were.
    ///
    /// # Errors
    /// AGAIN if nothing is there; CONNREFUSED and other answers to what was sent before.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.count = 0;
        for header in &mut self.headers {
            header.msg_hdr.msg_namelen = ROOM;
            header.msg_hdr.msg_controllen = CONTROL_BYTES;
        }
        let room = libc::c_uint::try_from(self.headers.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY: every header leads to a name, a control and a payload buffer of the lengths it says, all in boxes that
        // live as long as `self`; `room` is the number of headers. The kernel writes nowhere else.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                room,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        self.count = usize::try_from(count).map_err(|_| last_errno())?;
        Ok(self.count)
    }

    /// The receives of the last batch. One that was cut off (longer than any datagram) or came from nowhere is left out.
    pub fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>> {
        (0..self.count).filter_map(|number| self.arrival(number))
    }

    fn arrival(&self, number: usize) -> Option<Arrival<'_>> {
        let header = &self.headers[number];
        if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        let start = number * STRIDE;
        let bytes = &self.buffer[start..start + header.msg_len as usize];
        let mut arrival = Arrival {
            bytes,
            segment_bytes: bytes.len(),
            from: self.names[number].decode()?,
            local: None,
            original_destination: None,
        };
        for message in ControlMessages::of(&header.msg_hdr) {
            message.apply(&mut arrival);
        }
        Some(arrival)
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received").field("room", &self.headers.len()).field("count", &self.count).finish()
    }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Walks the control messages of one receive.
struct ControlMessages<'a> {
    header: &'a libc::msghdr,
    next: *const libc::cmsghdr,
}

impl<'a> ControlMessages<'a> {
    fn of(header: &'a libc::msghdr) -> Self {
        // SAFETY: msg_control and msg_controllen name the part of our buffer that the kernel has filled.
        Self { header, next: unsafe { libc::CMSG_FIRSTHDR(header) } }
    }
}

struct ControlMessage<'a>(&'a libc::cmsghdr);

impl<'a> Iterator for ControlMessages<'a> {
    type Item = ControlMessage<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a complete header inside the control buffer, which is
        // 8-aligned and borrowed through `header` for 'a.
        let message = unsafe { self.next.as_ref() }?;
        // SAFETY: as above; `message` is the one that they gave last.
        self.next = unsafe { libc::CMSG_NXTHDR(self.header, message) };
        Some(ControlMessage(message))
    }
}

impl ControlMessage<'_> {
    fn apply(&self, arrival: &mut Arrival<'_>) {
        match (self.0.cmsg_level, self.0.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = self.read::<libc::c_int>().and_then(|size| usize::try_from(size).ok());
                arrival.segment_bytes = size.filter(|&size| size > 0).unwrap_or(arrival.segment_bytes);
            }
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                arrival.local = self.read::<libc::in_pktinfo>().map(|info| Local {
                    // The header's destination; ipi_spec_dst is what the routes would answer from.
                    ip: IpAddr::V4(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr))),
                    interface: 0,
                });
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                arrival.local = self.read::<libc::in6_pktinfo>().map(|info| {
                    let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    let interface = if ip.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                    Local { ip: IpAddr::V6(ip), interface }
                });
            }
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) => {
                arrival.original_destination = self.read::<libc::sockaddr_in>().map(|raw| decode_v4(&raw));
            }
            (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => {
                arrival.original_destination = self.read::<libc::sockaddr_in6>().map(|raw| decode_v6(&raw));
            }
            _ => {}
        }
    }

    /// The data as a `T`, if there is enough of it.
    fn read<T: Plain>(&self) -> Option<T> {
        // SAFETY: only arithmetic: the length of a control message's header for data of this size.
        let needed = unsafe { libc::CMSG_LEN(u32::try_from(size_of::<T>()).ok()?) } as usize;
        if self.0.cmsg_len < needed {
            return None;
        }
        // SAFETY: the message holds at least size_of::<T>() bytes of data, as was just checked, and `Plain` types are valid
        // for all of them; the read is unaligned.
        Some(unsafe { libc::CMSG_DATA(self.0).cast::<T>().read_unaligned() })
    }
}

/// Kernel types of plain integers, for which all bytes are valid.
///
/// # Safety
/// Implemented only for such types.
unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: three integers.
unsafe impl Plain for libc::in_pktinfo {}
// SAFETY: bytes and an integer.
unsafe impl Plain for libc::in6_pktinfo {}
// SAFETY: integers and bytes.
unsafe impl Plain for libc::sockaddr_in {}
// SAFETY: integers and bytes.
unsafe impl Plain for libc::sockaddr_in6 {}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(bytes: &[u8], segment_bytes: usize) -> Arrival<'_> {
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        Arrival { bytes, segment_bytes, from, local: None, original_destination: None }
    }

    #[test]
    fn a_merged_receive_falls_into_its_datagrams() {
        let lengths =
            |bytes: &[u8], size| arrival(bytes, size).datagrams().map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(b"aabbc", 2), [2, 2, 1]);
        assert_eq!(lengths(b"aabb", 2), [2, 2]);
        assert_eq!(lengths(b"aabb", 4), [4]);
        assert_eq!(lengths(b"", 0), [0]);
    }
}
