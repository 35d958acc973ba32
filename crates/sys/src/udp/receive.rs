//! Receiving a batch.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::address::{ROOM, RawAddress, decode_v4, decode_v6};
use super::{LONGEST_DATAGRAM, Local};

/// Room for the control messages of one receive: those that this crate enables, and one small message more.
const CONTROL_BYTES: usize = 192;
const _: () = assert!(CONTROL_BYTES >= ENABLED_BYTES);
/// The control messages that this crate enables (`enable_arrival_reports`, `enable_gro`), see ip(7), ipv6(7)
/// and udp(7). A socket of both families gets the IPv4 ones, too.
const ENABLED_BYTES: usize = space::<libc::in_pktinfo>()
    + space::<libc::in6_pktinfo>()
    + space::<libc::sockaddr_in>()
    + space::<libc::sockaddr_in6>()
    + space::<libc::c_int>();

/// A control message with a `T`, as long as CMSG_SPACE(3) says: a header of 16 bytes, and data, in units of
/// 8.
const fn space<T>() -> usize {
    size_of::<libc::cmsghdr>() + size_of::<T>().next_multiple_of(8)
}
/// From one buffer to the next: a little more than the longest datagram, and no multiple of a power of two,
/// so that the beginnings of a batch don't all fall into the same few cache lines.
const STRIDE: usize = LONGEST_DATAGRAM + 1 + 192;

/// One receive of a batch: a datagram, or several of equal size that the kernel has merged (UDP_GRO).
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The payload; several datagrams one after the other if `segment_bytes` is less than its length.
    pub bytes: &'a [u8],
    /// The length of each datagram in it but the last, which may be shorter.
    pub segment_bytes: usize,
    /// Its sender.
    pub from: SocketAddr,
    /// The address that it was sent to, if the socket reports it.
    pub local: Option<Local>,
    /// The device that it came in by; 0 if the socket does not report it.
    pub device: u32,
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
pub struct ReceiveBatch {
    /// Pointers in here, and in `parts`, are set by each receive before the kernel follows them, and
    /// followed by nobody afterwards: `ReceiveBatch` may move in between.
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[RawAddress]>,
    controls: Box<[Control]>,
    buffer: Box<[u8]>,
    count: usize,
}

// SAFETY: the raw pointers inside `headers` and `parts` are followed only within `receive`, which sets them
// first, by the thread that calls it; everything else is owned.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// Room for `most` receives at once, 64 KiB each; memory is used only where datagrams have been.
    #[must_use]
    pub fn with_room_for(most: usize) -> Self {
        // SAFETY: zeros are valid for mmsghdr and iovec: null pointers and zero lengths.
        let (header, part) =
            unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        Self {
            headers: vec![header; most].into(),
            parts: vec![part; most].into(),
            names: vec![RawAddress::empty(); most].into(),
            controls: vec![Control([0; CONTROL_BYTES]); most].into(),
            buffer: vec![0; most * STRIDE].into(),
            count: 0,
        }
    }

    /// Where the kernel is to write this time.
    fn connect_pointers(&mut self) {
        let buffers = self.buffer.chunks_exact_mut(STRIDE);
        let rooms = self.names.iter_mut().zip(self.controls.iter_mut()).zip(self.parts.iter_mut());
        for ((buffer, ((name, control), part)), header) in buffers.zip(rooms).zip(self.headers.iter_mut()) {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = LONGEST_DATAGRAM;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = ROOM;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _; // musl has other integers than glibc here
        }
    }

    /// Receives what is there, at most the room; returns how many receives that were.
    ///
    /// # Errors
    /// AGAIN if nothing is there; CONNREFUSED and other answers to what was sent before.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.count = 0;
        self.connect_pointers();
        let room = libc::c_uint::try_from(self.headers.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY: `connect_pointers` has just made every header lead to a name, a control and a payload
        // buffer of the lengths it says, all in boxes of `self`, which is borrowed until the call is
        // over; `room` is the number of headers. The kernel writes nowhere else.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                room,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        self.count = usize::try_from(count).map_err(|_| last_errno())?;
        Ok(self.count)
    }

    /// The receives of the last batch. One that was cut off (longer than any datagram) or came from nowhere
    /// is left out.
    pub fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>> {
        (0..self.count).filter_map(|number| self.arrival(number))
    }

    /// How many receives of the last batch [`Self::arrivals`] leaves out because they were cut off: a
    /// datagram, or what the kernel says of it, was longer than the room for it.
    pub fn cut_off(&self) -> usize {
        self.headers[..self.count].iter().filter(|header| is_cut_off(header)).count()
    }

    fn arrival(&self, number: usize) -> Option<Arrival<'_>> {
        let header = &self.headers[number];
        if is_cut_off(header) {
            return None;
        }
        let start = number * STRIDE;
        let bytes = &self.buffer[start..start + header.msg_len as usize];
        let mut arrival = Arrival {
            bytes,
            segment_bytes: bytes.len(),
            from: self.names[number].decode()?,
            local: None,
            device: 0,
            original_destination: None,
        };
        let written: usize = header.msg_hdr.msg_controllen as _;
        let controls = &self.controls[number].0[..written.min(CONTROL_BYTES)];
        for message in ControlMessages::of(controls) {
            message.apply(&mut arrival);
        }
        Some(arrival)
    }
}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received").field("room", &self.headers.len()).field("count", &self.count).finish()
    }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn is_cut_off(header: &libc::mmsghdr) -> bool {
    header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0
}

/// Walks the control messages of one receive: `struct cmsghdr` and data, each beginning at a multiple of 8.
struct ControlMessages<'a>(&'a [u8]);

/// One of them: level, type and data.
struct ControlMessage<'a> {
    level: libc::c_int,
    kind: libc::c_int,
    data: &'a [u8],
}

impl<'a> ControlMessages<'a> {
    /// The part of the control buffer that the kernel has written.
    fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = ControlMessage<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let header = read::<libc::cmsghdr>(self.0)?;
        let length: usize = header.cmsg_len as _;
        let data = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(8)..).unwrap_or_default();
        Some(ControlMessage { level: header.cmsg_level, kind: header.cmsg_type, data })
    }
}

/// The first bytes as a `T`, if there are enough of them.
fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: there are size_of::<T>() bytes, as was just checked, of which a `Plain` type takes any; the
    // read is unaligned.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

impl ControlMessage<'_> {
    fn apply(&self, arrival: &mut Arrival<'_>) {
        match (self.level, self.kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = read::<libc::c_int>(self.data).and_then(|size| usize::try_from(size).ok());
                arrival.segment_bytes = size.filter(|&size| size > 0).unwrap_or(arrival.segment_bytes);
            }
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                let info = read::<libc::in_pktinfo>(self.data);
                arrival.local = info.map(|info| Local {
                    // The header's destination; ipi_spec_dst is what the routes would answer from.
                    ip: IpAddr::V4(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr))),
                    interface: 0,
                });
                arrival.device = info.and_then(|info| u32::try_from(info.ipi_ifindex).ok()).unwrap_or(0);
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                let info = read::<libc::in6_pktinfo>(self.data);
                arrival.device = info.map_or(0, |info| info.ipi6_ifindex);
                arrival.local = info.map(|info| {
                    let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    let interface = if ip.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                    Local { ip: IpAddr::V6(ip), interface }
                });
            }
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) => {
                arrival.original_destination =
                    read::<libc::sockaddr_in>(self.data).map(|raw| decode_v4(&raw));
            }
            (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => {
                arrival.original_destination =
                    read::<libc::sockaddr_in6>(self.data).map(|raw| decode_v6(&raw));
            }
            _ => {}
        }
    }
}

/// Kernel types of plain integers, for which all bytes are valid.
///
/// # Safety
/// Implemented only for such types.
unsafe trait Plain {}
// SAFETY: a length and two integers.
unsafe impl Plain for libc::cmsghdr {}
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
    use std::os::fd::AsFd;

    use super::*;

    fn arrival(bytes: &[u8], segment_bytes: usize) -> Arrival<'_> {
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        Arrival { bytes, segment_bytes, from, local: None, device: 0, original_destination: None }
    }

    /// A control buffer as the kernel writes it.
    fn message(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Vec<u8> {
        let length = size_of::<libc::cmsghdr>() + data.len();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(length.next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn control_messages_are_walked_and_broken_ones_end_the_walk() {
        let size = message(libc::SOL_UDP, libc::UDP_GRO, &1200_i32.to_ne_bytes());
        let both = [message(1, 2, b"x"), size.clone()].concat();
        let walk = |bytes: &[u8]| {
            let mut arrival = arrival(b"", 0);
            let count = ControlMessages::of(bytes).inspect(|message| message.apply(&mut arrival)).count();
            (count, arrival.segment_bytes)
        };
        assert_eq!(walk(&both), (2, 1200));
        assert_eq!(walk(&size), (1, 1200));
        for cut in 0..size.len() - 4 {
            assert_eq!(walk(&size[..cut]), (0, 0), "{cut}");
        }
        for length in [0_usize, 1, 15, usize::MAX, usize::MAX - 7] {
            let broken = [&length.to_ne_bytes()[..], &size[8..]].concat();
            assert_eq!(walk(&broken), (0, 0), "{length}");
        }
        assert_eq!(walk(&message(libc::SOL_UDP, libc::UDP_GRO, b"xy")), (1, 0), "too short for a number");
    }

    /// A socket that reports more than there is room for: the datagram is not half understood, and not lost
    /// unnoticed.
    #[test]
    fn what_is_cut_off_is_left_out_and_counted() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let on = 1;
        for option in
            [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS, libc::IP_ORIGDSTADDR, libc::IP_RECVOPTS]
        {
            set_option(&socket, libc::SOL_IP, option, on);
        }
        for option in [libc::SO_TIMESTAMPNS, libc::SO_RXQ_OVFL, libc::SO_TIMESTAMPING] {
            set_option(
                &socket,
                libc::SOL_SOCKET,
                option,
                if option == libc::SO_TIMESTAMPING { 0x18 } else { on },
            );
        }
        let mut received = ReceiveBatch::with_room_for(4);
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        // It may move between receives.
        received = Box::new([received]).into_iter().next().unwrap();
        assert_eq!(received.receive(socket.as_fd()), Ok(1));
        assert_eq!((received.arrivals().count(), received.cut_off()), (0, 1));
        assert_eq!(received.receive(socket.as_fd()), Err(Errno::AGAIN));
        assert_eq!(received.cut_off(), 0);
    }

    fn set_option(socket: &std::net::UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
        // SAFETY: these options take one c_int; pointer and length name exactly that local.
        let set =
            unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), 4) };
        assert_eq!(set, 0, "option {option}");
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
