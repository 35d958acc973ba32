//! The TCP connections of the calling thread's network namespace, listed and ended by sock_diag(7).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::layout::{Address, FlowKey};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// `SOCK_DESTROY` (linux/sock_diag.h).
const DESTROY: u16 = 21;
/// Flags and kinds of linux/netlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
/// Of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Of `struct nlmsghdr` and `struct inet_diag_req_v2` (linux/inet_diag.h).
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// Of `struct inet_diag_sockid`, which stands at offset 4 of an answer and 8 of a request.
const ID_LEN: usize = 48;
/// Of `struct inet_diag_msg`: family, state, timer, retransmissions, the sockid, and then five numbers, the last of which is
/// that of the file that holds the socket.
const INODE_AT: usize = 4 + ID_LEN + 16;
/// States of include/net/tcp_states.h.
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
/// As long as a netlink message of a dump can be.
const MESSAGE_MAX: usize = 32 * 1024;

/// A netlink socket.
pub(crate) struct SockDiag(OwnedFd);

/// A connection, as the kernel identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    family: u8,
    /// `struct inet_diag_sockid`: ports, addresses, device, cookie.
    id: [u8; ID_LEN],
}

impl SockDiag {
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = Some(netlink::SOCK_DIAG);
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?))
    }

    /// All TCP connections, including half-open ones, from which a program may still read.
    pub(crate) fn connections(&mut self) -> io::Result<Vec<Connection>> {
        let mut found = Vec::new();
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let family = family.as_raw().to_le_bytes()[0];
            send(&self.0, &request(BY_FAMILY, NLM_F_DUMP, family, &[0; ID_LEN]), SendFlags::empty())?;
            while !self.receive(|kind, body| match kind {
                BY_FAMILY => {
                    found.extend(Connection::read(body));
                    Ok(false)
                }
                // A dump that fails also ends with a message, which contains a negative number.
                NLMSG_DONE | NLMSG_ERROR => outcome(body).map(|()| true),
                _ => Ok(false),
            })? {}
        }
        Ok(found)
    }

    /// Ends a connection: its peer gets a RST, its owner's calls fail with ECONNABORTED. A connection that has
    /// already ended is fine.
    pub(crate) fn destroy(&mut self, connection: &Connection) -> io::Result<()> {
        send(&self.0, &request(DESTROY, NLM_F_ACK, connection.family, &connection.id), SendFlags::empty())?;
        let mut answer = Ok(());
        while !self.receive(|kind, body| {
            if kind == NLMSG_ERROR {
                answer = outcome(body);
            }
            Ok(kind == NLMSG_ERROR)
        })? {}
        match answer {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
            answer => answer,
        }
    }

    /// Calls `show` with the type and payload of each message of a datagram. Returns whether one of them was the
    /// last.
    fn receive(&mut self, mut on_message: impl FnMut(u16, &[u8]) -> io::Result<bool>) -> io::Result<bool> {
        let mut buffer = vec![0; MESSAGE_MAX];
        let (count, _) = recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &buffer[..count];
        while let Some((kind, body, next)) = split_message(rest) {
            if on_message(kind, body)? {
                return Ok(true);
            }
            rest = next;
        }
        Ok(false)
    }
}

impl Connection {
    /// Parses `struct inet_diag_msg`. `None` for a connection that its owner has closed: the kernel delivers its
    /// bytes to nobody, and older kernels (6.1) can't end it.
    fn read(body: &[u8]) -> Option<Self> {
        let (family, state) = (*body.first()?, *body.get(1)?);
        let inode = u32::from_ne_bytes(body.get(INODE_AT..INODE_AT + 4)?.try_into().ok()?);
        if state == TIME_WAIT || (state == FIN_WAIT2 && inode == 0) {
            return None;
        }
        Some(Self { family, id: body.get(4..4 + ID_LEN)?.try_into().ok()? })
    }

    /// Its key in the tables.
    pub(crate) fn key(&self) -> FlowKey {
        let is_ipv4 = u16::from(self.family) == AddressFamily::INET.as_raw();
        let address = |at: usize| {
            let mut bytes = [0; 16];
            if is_ipv4 {
                bytes[10..12].fill(0xff);
                bytes[12..].copy_from_slice(&self.id[at..at + 4]);
            } else {
                bytes.copy_from_slice(&self.id[at..at + 16]);
            }
            Address(bytes)
        };
        FlowKey {
            sender: address(20),
            local: address(4),
            sender_port: [self.id[2], self.id[3]],
            local_port: [self.id[0], self.id[1]],
        }
    }
}

/// The first message: its type, its payload, and the bytes after it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER_LEN..len)?;
    // The last one may lack padding.
    Some((kind, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// `nlmsgerr.error`, or the end of a dump: 0, or a negative error number.
fn outcome(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(()) }
}

/// In any state.
fn request(kind: u16, flags: u16, family: u8, id: &[u8; ID_LEN]) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    bytes[0..4].copy_from_slice(&u32::try_from(REQUEST_LEN).unwrap_or_default().to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    bytes[HEADER_LEN] = family;
    bytes[HEADER_LEN + 1] = IPPROTO_TCP;
    bytes[HEADER_LEN + 4..HEADER_LEN + 8].fill(0xff);
    bytes[HEADER_LEN + 8..].copy_from_slice(id);
    bytes
}
