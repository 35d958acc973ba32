//! What the kernel tells of changes by netlink(7), and lists of what it has: raw messages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink, XFRM};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::error::{CallError, Named};
use crate::netlink::{HEADER_LEN, Messages, NetlinkAnswer, NetlinkEnd, RawMessage};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// More than any datagram of a dump (netlink_dump(): 32 KiB) or a notice.
const DATAGRAM_BYTES: usize = 64 << 10;
/// Room for the notices of nftables: lists of banned addresses are added by thousands.
const NOTICES_BYTES: usize = 32 << 20;
/// How often a list is read that changes meanwhile.
const ATTEMPTS: usize = 10;
const SEQUENCE: u32 = 1;

/// A family of netlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Devices, addresses, routes and rules.
    Route,
    /// IPsec policies. Needs CAP_NET_ADMIN.
    Xfrm,
    /// nftables. Needs CAP_NET_ADMIN.
    Netfilter,
}

fn open(family: Family) -> Result<OwnedFd, CallError> {
    let protocol = match family {
        Family::Route => None,
        Family::Xfrm => Some(XFRM),
        Family::Netfilter => Some(NETFILTER),
    };
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
        .named("socket(AF_NETLINK)")
}

/// A socket that hears of changes in the network namespace that it was opened in.
#[derive(Debug)]
pub struct Notices {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Notices {
    /// Hears of changes from now on. `groups`: bits of `nl_groups` in netlink(7).
    ///
    /// # Errors
    /// A failed call: the kernel lacks this family (EPROTONOSUPPORT), or a capability is missing.
    pub fn of(family: Family, groups: u32) -> Result<Self, CallError> {
        let socket = open(family)?;
        if family == Family::Netfilter {
            // If it fails, fewer are kept until they are read.
            let _ = set_socket_recv_buffer_size_force(&socket, NOTICES_BYTES);
        }
        bind(&socket, &SocketAddrNetlink::new(0, groups)).named("bind(AF_NETLINK)")?;
        Ok(Self { socket, buffer: vec![0; DATAGRAM_BYTES] })
    }

    /// Shows each notice since the last call to `found`, without waiting. False: some were lost.
    pub fn read(&mut self, mut found: impl FnMut(&RawMessage<'_>)) -> bool {
        let mut are_whole = true;
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((length, _)) => Messages(&self.buffer[..length]).for_each(|message| found(&message)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return are_whole,
                // ENOBUFS: it lacked room. The next call reads on.
                Err(Errno::NOBUFS) => are_whole = false,
                Err(_) => return false,
            }
        }
    }
}

/// Readable when there are notices.
impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads a whole list: each entry is shown to `found`, which adds it to the result. A list that changes
/// meanwhile is read again.
///
/// # Errors
/// A failed call, the kernel's refusal, or EAGAIN if the list changed during each of ten attempts.
pub fn list<T: Default>(
    family: Family,
    kind: u16,
    query: &[u8],
    mut found: impl FnMut(&mut T, &RawMessage<'_>),
) -> Result<T, CallError> {
    let socket = open(family)?;
    let mut buffer = vec![0; DATAGRAM_BYTES];
    for sequence in (SEQUENCE..).take(ATTEMPTS) {
        send(&socket, &request(kind, query, sequence), SendFlags::empty()).named("send(netlink)")?;
        let (mut list, mut answer) = (T::default(), NetlinkAnswer::to(sequence));
        let end = loop {
            let (length, _) =
                recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()).named("recv(netlink)")?;
            if let Some(end) = answer.on_datagram(&buffer[..length], |message| found(&mut list, message)) {
                break end;
            }
        };
        match end {
            NetlinkEnd::Whole => return Ok(list),
            NetlinkEnd::Interrupted => {}
            NetlinkEnd::Refused { errno, .. } => return Err(CallError { call: "a netlink list", errno }),
        }
    }
    Err(CallError { call: "a netlink list", errno: Errno::AGAIN })
}

fn request(kind: u16, query: &[u8], sequence: u32) -> Vec<u8> {
    let length = u32::try_from(HEADER_LEN + query.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_LEN + query.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(query);
    bytes
}

/// The attributes after a message's fixed part: their types and values.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// NLA_F_NESTED and NLA_F_NET_BYTEORDER.
    const FLAGS: u16 = 0xc000;
    std::iter::from_fn(move || {
        let [low, high, kind_low, kind_high, ..] = bytes else { return None };
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let kind = u16::from_ne_bytes([*kind_low, *kind_high]) & !FLAGS;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The 32-bit number at this offset, in the machine's order.
#[must_use]
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}
