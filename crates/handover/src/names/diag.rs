//! Asking the kernel whether a connection is still there (sock_diag(7)): one question, one answer, no privilege.

use core::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::{Census, Standing, Tuple, namespace_of};

/// `struct nlmsghdr` and `struct inet_diag_req_v2` (linux/inet_diag.h).
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
const REQUEST_LEN_FIELD: u32 = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `idiag_inode`, the last field of `struct inet_diag_msg`.
const INODE: usize = HEADER_LEN + 68;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Of `struct inet_diag_req_v2`: which states are asked for.
const STATES: usize = HEADER_LEN + 4;
const IPPROTO_TCP: u8 = 6;
const ENOENT: i32 = -2;
const ESTALE: i32 = -116;

/// A netlink socket, opened when it is first needed. It knows the connections of the network namespace that it was opened in.
#[derive(Debug, Default)]
pub struct SocketDiag(Option<(OwnedFd, u32)>);

impl SocketDiag {
    /// Not opened yet.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether the kernel answers at all: a service manager may forbid netlink sockets (RestrictAddressFamilies).
    pub fn is_answered(&mut self) -> bool {
        self.ready().is_some()
    }

    fn ready(&mut self) -> Option<&(OwnedFd, u32)> {
        if self.0.is_none() {
            self.0 = open();
        }
        self.0.as_ref()
    }

    fn question(&mut self, cookie: u64, tuple: &Tuple) -> Option<Answer> {
        let (socket, namespace) = self.ready()?;
        if *namespace != tuple.namespace {
            return None;
        }
        Answer::read(exchange(socket, &request(cookie, tuple))?.bytes())
    }
}

/// Where the kernel can't say (no tcp_diag), it says of every connection that there is none: it is not to be asked, then.
/// A question for all connections in none of the states tells it apart, and has an empty answer.
fn open() -> Option<(OwnedFd, u32)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    let nowhere = SocketAddr::from(([0; 4], 0));
    let namespace = namespace_of(socket.as_fd());
    let tuple = Tuple { local: nowhere, sender: nowhere, device: 0, namespace };
    let mut all_in_no_state = request(0, &tuple);
    all_in_no_state[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    all_in_no_state[STATES..STATES + 4].fill(0);
    let answer = exchange(&socket, &all_in_no_state)?;
    (kind(answer.bytes())? == NLMSG_DONE).then_some((socket, namespace))
}

struct Message([u8; 512], usize);

impl Message {
    fn bytes(&self) -> &[u8] {
        &self.0[..self.1.min(self.0.len())]
    }
}

/// The kernel answers within the call that asks.
fn exchange(socket: &OwnedFd, request: &[u8]) -> Option<Message> {
    send(socket, request, SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let (count, _) = recv(socket, &mut answer, RecvFlags::empty()).ok()?;
    Some(Message(answer, count))
}

fn kind(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?))
}

enum Answer {
    Open,
    Closed,
}

impl Answer {
    fn read(bytes: &[u8]) -> Option<Self> {
        let kind = kind(bytes)?;
        if kind == SOCK_DIAG_BY_FAMILY {
            // No process has it open: the kernel is finishing it (FIN_WAIT, LAST_ACK), or remembers its ends
            // (TIME_WAIT).
            let has_inode = bytes.get(INODE..INODE + 4)? != [0; 4];
            return Some(if has_inode { Self::Open } else { Self::Closed });
        }
        let error = i32::from_ne_bytes(bytes.get(HEADER_LEN..HEADER_LEN + 4)?.try_into().ok()?);
        match (kind, error) {
            (NLMSG_ERROR, ENOENT) => Some(Self::Closed),
            // The same ends, another connection.
            (NLMSG_ERROR, ESTALE) => Some(Self::Closed),
            _ => None,
        }
    }
}

impl Census for SocketDiag {
    fn ask(&mut self, cookie: u64, tuple: &Tuple) -> Standing {
        match self.question(cookie, tuple) {
            Some(Answer::Open) => Standing::Open,
            Some(Answer::Closed) => Standing::Closed,
            None => Standing::Unknown,
        }
    }
}

/// `inet_diag_req_v2`: family, protocol, ext, pad, states, then `inet_diag_sockid`: ports, addresses, device, cookie.
fn request(cookie: u64, tuple: &Tuple) -> [u8; REQUEST_LEN] {
    const SOCKID: usize = HEADER_LEN + 8;
    const DEVICE: usize = SOCKID + 4 + 32;
    const COOKIE: usize = DEVICE + 4;
    let mut bytes = [0; REQUEST_LEN];
    bytes[0..4].copy_from_slice(&REQUEST_LEN_FIELD.to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let family = if tuple.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    bytes[HEADER_LEN] = family.as_raw().to_le_bytes()[0];
    bytes[HEADER_LEN + 1] = IPPROTO_TCP;
    bytes[STATES..STATES + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes[SOCKID..SOCKID + 2].copy_from_slice(&tuple.local.port().to_be_bytes());
    bytes[SOCKID + 2..SOCKID + 4].copy_from_slice(&tuple.sender.port().to_be_bytes());
    put_ip(&mut bytes[SOCKID + 4..], tuple.local);
    put_ip(&mut bytes[SOCKID + 20..], tuple.sender);
    bytes[DEVICE..DEVICE + 4].copy_from_slice(&tuple.device.to_ne_bytes());
    let [high @ .., _, _, _, _] = cookie.to_be_bytes();
    let [_, _, _, _, low @ ..] = cookie.to_be_bytes();
    bytes[COOKIE..COOKIE + 4].copy_from_slice(&u32::from_be_bytes(low).to_ne_bytes());
    bytes[COOKIE + 4..COOKIE + 8].copy_from_slice(&u32::from_be_bytes(high).to_ne_bytes());
    bytes
}

fn put_ip(bytes: &mut [u8], addr: SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[..16].copy_from_slice(&ip.octets()),
    }
}
