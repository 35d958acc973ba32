//! TCP sockets of a network namespace, found, listed and ended by netlink (sock_diag(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::error::{CallError, Named};
use crate::netlink::{HEADER_LEN, Messages, NLMSG_DONE, NetlinkAnswer, NetlinkEnd, outcome};

/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// Flags and types of linux/netlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const IPPROTO_TCP: u8 = 6;
/// The length of `struct inet_diag_sockid` (linux/inet_diag.h): ports, addresses, device, cookie.
const ID_LEN: usize = 48;
/// The length of a request: `struct nlmsghdr` and `struct inet_diag_req_v2`, which ends with the sockid.
const REQUEST_LEN: usize = HEADER_LEN + 8 + ID_LEN;
/// The offset of `idiag_inode` in `struct inet_diag_msg`: family, state, timer, retransmissions, the sockid,
/// and four other numbers.
const INODE_AT: usize = 4 + ID_LEN + 16;
/// `idiag_uid` is before it.
const USER_AT: usize = INODE_AT - 4;
/// States of include/net/tcp_states.h.
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;
/// Attributes of a socket after `struct inet_diag_msg`: INET_DIAG_SKV6ONLY and INET_DIAG_CGROUP_ID
/// (linux/inet_diag.h).
const IPV6_ONLY: u16 = 11;
const CGROUP_ID: u16 = 21;
/// INET_DIAG_INFO and INET_DIAG_SKMEMINFO, which have to be asked for by a bit each, and the offsets of
/// `tcpi_bytes_received` and `tcpi_segs_in` in `struct tcp_info`, and of SK_MEMINFO_DROPS.
const INFO: u16 = 2;
const MEMORY: u16 = 7;
const ARRIVALS: u8 = 1 << (INFO - 1) | 1 << (MEMORY - 1);
const BYTES_AT: usize = 128;
const SEGMENTS_AT: usize = 140;
const DROPS_AT: usize = 32;
/// `struct inet_diag_msg`: its inode is the last field.
const MESSAGE_LEN: usize = INODE_AT + 4;
/// All states, as the bits of `idiag_states`.
const EVERY_STATE: u32 = u32::MAX;
/// Room for one answer: the message about a socket has 72 bytes and few attributes, of which the longest is
/// `struct tcp_info` (below 300 bytes); an error repeats the request.
const ANSWER_BYTES: usize = 1024;
/// Room for one datagram of a dump: netlink_dump() makes none longer than 32 KiB.
const DUMP_BYTES: usize = 32 << 10;
/// How often a list is read that changes meanwhile.
const ATTEMPTS: u32 = 10;

/// A netlink socket. It sees the sockets of the network namespace that it was opened in.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
    /// The attributes to ask for (`idiag_ext`).
    extensions: u8,
}

/// A TCP socket, as the kernel identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketId {
    family: u8,
    /// `struct inet_diag_sockid`.
    id: [u8; ID_LEN],
}

impl SocketId {
    /// The socket with these ends, which are of one family; `device`: the index of the device that it is
    /// bound to, or 0; `cookie`: SO_COOKIE.
    #[must_use]
    pub fn new(local: SocketAddr, sender: SocketAddr, device: u32, cookie: u64) -> Self {
        let mut id = [0; ID_LEN];
        id[0..2].copy_from_slice(&local.port().to_be_bytes());
        id[2..4].copy_from_slice(&sender.port().to_be_bytes());
        put_ip(&mut id[4..20], local.ip());
        put_ip(&mut id[20..36], sender.ip());
        id[36..40].copy_from_slice(&device.to_ne_bytes());
        // Two words, the lower one first.
        let [high @ .., l0, l1, l2, l3] = cookie.to_be_bytes();
        id[40..44].copy_from_slice(&u32::from_be_bytes([l0, l1, l2, l3]).to_ne_bytes());
        id[44..48].copy_from_slice(&u32::from_be_bytes(high).to_ne_bytes());
        Self { family: number(if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }), id }
    }

    /// The address and port at this end.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.end(0, 4)
    }

    /// The address and port at the other end.
    #[must_use]
    pub fn sender(&self) -> SocketAddr {
        self.end(2, 20)
    }

    fn end(&self, port: usize, ip: usize) -> SocketAddr {
        let port = u16::from_be_bytes([self.id[port], self.id[port + 1]]);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.id[ip..ip + 16]);
        let [a, b, c, d, ..] = bytes;
        let is_ipv4 = self.family == number(AddressFamily::INET);
        let ip = if is_ipv4 { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(bytes).into() };
        SocketAddr::new(ip, port)
    }
}

fn put_ip(bytes: &mut [u8], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.copy_from_slice(&ip.octets()),
    }
}

fn number(family: AddressFamily) -> u8 {
    family.as_raw().to_le_bytes()[0]
}

impl SockDiag {
    /// Opens a netlink socket. No privilege is needed.
    ///
    /// # Errors
    /// The kernel's: netlink may be forbidden (systemd: RestrictAddressFamilies).
    pub fn open() -> Result<Self, CallError> {
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        Ok(Self { socket: socket.named("socket(NETLINK_SOCK_DIAG)")?, sequence: 0, extensions: 0 })
    }

    /// Whether questions are answered. A kernel without tcp_diag says of every socket that it does not exist;
    /// it refuses a dump. This one asks for sockets in none of the states: its answer is empty.
    pub fn is_answered(&mut self) -> bool {
        let nowhere = SocketAddr::from(([0; 4], 0));
        let all = SocketId::new(nowhere, nowhere, 0, 0);
        let answer = self.ask(BY_FAMILY, NLM_F_DUMP, 0, &all, |kind, _| kind == NLMSG_DONE);
        answer == Ok(true)
    }

    /// Whether a program has this socket open. `Ok(false)`: there is none, or the kernel is finishing it
    /// (FIN_WAIT, LAST_ACK), or remembers its ends (TIME_WAIT). Allocates nothing and does not wait: the
    /// kernel answers within the call that asks.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn is_open(&mut self, socket: &SocketId) -> Result<bool, CallError> {
        self.user_of(socket).map(|user| user.is_some())
    }

    /// The number of the user who made this socket, as this process's user namespace has it. `Ok(None)`: no
    /// program has it open.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn user_of(&mut self, socket: &SocketId) -> Result<Option<u32>, CallError> {
        self.ask_about(socket, 0, |body| word(body, USER_AT))
    }

    /// What has arrived on this connection. `Ok(None)`: no program has it open.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn arrivals_on(&mut self, socket: &SocketId) -> Result<Option<Arrivals>, CallError> {
        self.ask_about(socket, ARRIVALS, arrivals)
    }

    /// `read` gets the message about the socket, if a program has it open.
    fn ask_about<T>(
        &mut self,
        socket: &SocketId,
        extensions: u8,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, CallError> {
        self.extensions = extensions;
        let answer = self.ask(BY_FAMILY, 0, EVERY_STATE, socket, |kind, body| match kind {
            BY_FAMILY if word(body, INODE_AT).ok_or(Errno::BADMSG)? == 0 => Ok(None),
            BY_FAMILY => read(body).ok_or(Errno::BADMSG).map(Some),
            // ESTALE: another socket has these ends.
            _ => match outcome(body) {
                Err(Errno::NOENT | Errno::STALE) => Ok(None),
                Err(errno) => Err(errno),
                Ok(()) => Err(Errno::BADMSG),
            },
        });
        self.extensions = 0;
        answer?.named("sock_diag")
    }

    /// All connections, half-open ones included, that a program may still read from.
    ///
    /// # Errors
    /// The kernel's; EINTR if the list changed during each attempt to read it.
    pub fn connections(&mut self) -> Result<Vec<SocketId>, CallError> {
        let mut found = self.dump(AddressFamily::INET, EVERY_STATE, connection)?;
        found.extend(self.dump(AddressFamily::INET6, EVERY_STATE, connection)?);
        Ok(found)
    }

    /// All sockets that listen.
    ///
    /// # Errors
    /// The kernel's; EINTR if the list changed during each attempt to read it.
    pub fn listeners(&mut self) -> Result<Vec<Listener>, CallError> {
        let mut found = self.dump(AddressFamily::INET, 1 << LISTEN, listener)?;
        found.extend(self.dump(AddressFamily::INET6, 1 << LISTEN, listener)?);
        Ok(found)
    }

    fn dump<T>(
        &mut self,
        family: AddressFamily,
        states: u32,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, CallError> {
        for _ in 0..ATTEMPTS {
            let all = SocketId { family: number(family), id: [0; ID_LEN] };
            self.send(BY_FAMILY, NLM_F_DUMP, states, &all)?;
            let (mut answer, mut found) = (NetlinkAnswer::to(self.sequence), Vec::new());
            let mut buffer = vec![0; DUMP_BYTES];
            let end = loop {
                let (count, _) =
                    recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()).named("recv(sock_diag)")?;
                let end = answer.on_datagram(&buffer[..count], |message| {
                    found.extend((message.kind == BY_FAMILY).then(|| read(message.body)).flatten());
                });
                if let Some(end) = end {
                    break end;
                }
            };
            match end {
                NetlinkEnd::Whole => return Ok(found),
                NetlinkEnd::Interrupted => {}
                NetlinkEnd::Refused { errno, .. } => return Err(CallError { call: "sock_diag", errno }),
            }
        }
        Err(CallError { call: "sock_diag", errno: Errno::INTR })
    }

    /// Ends a connection: its peer receives a RST, its owner's calls fail with ECONNABORTED. If it has ended
    /// meanwhile, that is a success.
    ///
    /// # Errors
    /// The kernel's: EOPNOTSUPP without `CONFIG_INET_DIAG_DESTROY`, EPERM without CAP_NET_ADMIN.
    pub fn destroy(&mut self, connection: &SocketId) -> Result<(), CallError> {
        let answer = self.ask(DESTROY, NLM_F_ACK, EVERY_STATE, connection, |_, body| match outcome(body) {
            Err(Errno::NOENT) => Ok(()),
            answer => answer,
        });
        answer?.named("SOCK_DESTROY")
    }

    /// Sends a request and shows the message that answers it: its type, and its bytes after the header.
    fn ask<T>(
        &mut self,
        kind: u16,
        flags: u16,
        states: u32,
        socket: &SocketId,
        read: impl FnOnce(u16, &[u8]) -> T,
    ) -> Result<T, CallError> {
        self.send(kind, flags, states, socket)?;
        let mut buffer = [0; ANSWER_BYTES];
        loop {
            let (count, _) =
                recv(&self.socket, buffer.as_mut_slice(), RecvFlags::DONTWAIT).named("recv(sock_diag)")?;
            let datagram = &buffer[..count.min(ANSWER_BYTES)];
            let answer = Messages(datagram).find(|message| message.sequence == self.sequence);
            if let Some(message) = answer {
                return Ok(read(message.kind, message.body));
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, states: u32, socket: &SocketId) -> Result<(), CallError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = [0; REQUEST_LEN];
        bytes[0..4].copy_from_slice(&u32::try_from(REQUEST_LEN).unwrap_or_default().to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[HEADER_LEN] = socket.family;
        bytes[HEADER_LEN + 1] = IPPROTO_TCP;
        bytes[HEADER_LEN + 2] = self.extensions;
        bytes[HEADER_LEN + 4..HEADER_LEN + 8].copy_from_slice(&states.to_ne_bytes());
        bytes[HEADER_LEN + 8..].copy_from_slice(&socket.id);
        send(&self.socket, &bytes, SendFlags::empty()).named("send(sock_diag)").map(drop)
    }
}

impl AsFd for SockDiag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads `struct inet_diag_msg`. `None` for what is left of a connection that its owner has closed: no
/// program receives its bytes, and older kernels (6.1) can't end it.
fn connection(body: &[u8]) -> Option<SocketId> {
    let (family, state) = (*body.first()?, *body.get(1)?);
    let has_inode = body.get(INODE_AT..INODE_AT + 4)? != [0; 4];
    if state == TIME_WAIT || (state == FIN_WAIT2 && !has_inode) {
        return None;
    }
    Some(SocketId { family, id: body.get(4..4 + ID_LEN)?.try_into().ok()? })
}

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub local: SocketAddr,
    /// It takes IPv6 connections only.
    pub is_ipv6_only: bool,
    /// The number of the cgroup that made it, which is its directory's inode. `None`: the kernel does not
    /// say.
    pub cgroup: Option<u64>,
}

fn listener(body: &[u8]) -> Option<Listener> {
    let id = SocketId { family: *body.first()?, id: body.get(4..4 + ID_LEN)?.try_into().ok()? };
    let mut found = Listener { local: id.local(), is_ipv6_only: false, cgroup: None };
    body.get(MESSAGE_LEN..)?;
    for (kind, value) in attributes(body) {
        match kind {
            IPV6_ONLY => found.is_ipv6_only = value.first().is_some_and(|is| *is != 0),
            CGROUP_ID => found.cgroup = value.try_into().ok().map(u64::from_ne_bytes),
            _ => {}
        }
    }
    Some(found)
}

/// What has arrived on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arrivals {
    /// The bytes that its owner has read or can read.
    pub bytes: u64,
    /// The segments that TCP has seen.
    pub segments: u32,
    /// The segments that were dropped, by TCP or before.
    pub drops: u32,
}

fn arrivals(body: &[u8]) -> Option<Arrivals> {
    let mut found = Arrivals::default();
    for (kind, value) in attributes(body) {
        match kind {
            INFO => {
                found.bytes = u64::from_ne_bytes(value.get(BYTES_AT..BYTES_AT + 8)?.try_into().ok()?);
                found.segments = word(value, SEGMENTS_AT)?;
            }
            MEMORY => found.drops = word(value, DROPS_AT)?,
            _ => {}
        }
    }
    Some(found)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The attributes after `struct inet_diag_msg`: `struct nlattr` (length with its header, kind), then the
/// value, padded to four bytes.
fn attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(MESSAGE_LEN..).unwrap_or_default();
    core::iter::from_fn(move || {
        let (header, _) = rest.split_at_checked(4)?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Reads any message as a connection, and as a listener. For fuzz/.
#[cfg(feature = "fuzzing")]
#[must_use]
pub fn read_any(body: &[u8]) -> (Option<SocketId>, Option<Listener>) {
    (connection(body), listener(body))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_its_owner_has_closed_is_not_listed() {
        let listed = |state, inode| {
            let mut body = [0; INODE_AT + 4];
            (body[0], body[1], body[INODE_AT]) = (number(AddressFamily::INET), state, inode);
            connection(&body).is_some()
        };
        assert!(listed(1, 9) && listed(FIN_WAIT2, 9) && listed(8, 0));
        assert!(!listed(TIME_WAIT, 0) && !listed(FIN_WAIT2, 0));
        assert!(connection(&[2; INODE_AT]).is_none(), "it is too short");
    }

    #[test]
    fn attributes_of_a_listener_are_read_whatever_their_length_says() {
        let mut body = vec![0; MESSAGE_LEN];
        body[0] = number(AddressFamily::INET6);
        let attribute = |kind: u16, value: &[u8]| {
            let len = u16::try_from(4 + value.len()).unwrap();
            [
                &len.to_ne_bytes()[..],
                &kind.to_ne_bytes(),
                value,
                &vec![0; value.len().next_multiple_of(4) - value.len()],
            ]
            .concat()
        };
        body.extend(attribute(IPV6_ONLY, &[1]));
        body.extend(attribute(CGROUP_ID, &42_u64.to_ne_bytes()));
        let found = listener(&body).unwrap();
        assert_eq!((found.is_ipv6_only, found.cgroup), (true, Some(42)));
        for cut in 0..body.len() {
            let _ = listener(&body[..cut]);
        }
        for len in [0, 1, 3, 4, 5, u16::MAX] {
            let bytes = [&body[..MESSAGE_LEN], &len.to_ne_bytes(), &[0; 6]].concat();
            assert_eq!(listener(&bytes).unwrap().cgroup, None, "{len}");
        }
    }

    #[test]
    fn the_kernel_tells_a_listeners_cgroup() {
        let Ok(mut diag) = SockDiag::open() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let found = diag.listeners().unwrap();
        let ours = found.iter().find(|listener| listener.local == local).expect("it listens");
        assert!(ours.cgroup.is_some_and(|id| id > 0));
    }

    #[test]
    fn both_ends_are_read_as_they_were_written() {
        for (local, sender) in [("192.0.2.1:80", "10.0.0.1:5"), ("[2001:db8::1]:80", "[fe80::1]:65535")] {
            let (local, sender) = (local.parse().unwrap(), sender.parse().unwrap());
            let id = SocketId::new(local, sender, 3, 0x1_0000_0002);
            assert_eq!((id.local(), id.sender()), (local, sender));
            assert_eq!(id.id[36..], [3_u32, 2, 1].map(u32::to_ne_bytes).concat());
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
    fn the_kernel_lists_and_finds_what_is_open() {
        let Ok(mut diag) = SockDiag::open() else { return };
        assert!(diag.is_answered());
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, sender) = listener.accept().unwrap();
            let local = accepted.local_addr().unwrap();
            let is_this = |id: &&SocketId| (id.local(), id.sender()) == (local, sender);
            let found = diag.connections().unwrap();
            let listed = *found.iter().find(is_this).expect("it is open");
            let cookie = rustix::net::sockopt::socket_cookie(&accepted).unwrap();
            assert_eq!(SocketId::new(local, sender, 0, cookie), listed);
            assert_eq!(diag.is_open(&listed), Ok(true));
            assert_eq!(diag.is_open(&SocketId::new(local, sender, 0, cookie + 1)), Ok(false), "another one");
            drop((accepted, stream));
        }
    }
}
