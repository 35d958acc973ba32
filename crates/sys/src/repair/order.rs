//! The calls that need CAP_NET_ADMIN, as orders. This process carries them out, or another one that has kept
//! the capability.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;

use super::{SIOCOUTQNSD, bytes_received, ioctl_int, set_int, unsigned_option};
use crate::{CallError, Named};

/// linux/tcp.h: the values of TCP_REPAIR and TCP_REPAIR_QUEUE.
const REPAIR_ON: libc::c_int = 1;
const REPAIR_OFF_WITH_PROBE: libc::c_int = 0;
const REPAIR_OFF_WITHOUT_PROBE: libc::c_int = -1;
const NO_QUEUE: libc::c_int = 0;
const RECEIVE_QUEUE: libc::c_int = 1;
const SEND_QUEUE: libc::c_int = 2;

/// Something to do under repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Say where the connections of one or two sockets stand.
    Stand,
    /// Have the peers of these sockets say what they have received and take.
    AskPeers,
    /// Have these sockets be silent when they are closed. They stay under repair.
    Silence,
    /// Reset a connection that has no socket here, by a socket that is made for that.
    Reset {
        /// Our end.
        own: SocketAddr,
        /// The peer.
        peer: SocketAddr,
        /// The number that the peer expects.
        expected: u32,
    },
    /// Ask the peer of a connection that has no socket here, by a new socket, which is under repair then.
    AskUnattended {
        /// Our end.
        own: SocketAddr,
        /// The peer.
        peer: SocketAddr,
        /// The number that the peer expects, and the one that is expected of it.
        numbers: [u32; 2],
        /// The newest timestamp that the peer was told.
        timestamp: Option<u32>,
    },
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stand {
    /// The number of the byte that would be written next; `None` while bytes wait in the queue that were
    /// never sent.
    ///
    /// While this queue is chosen the kernel takes for sent what it would send, so it is asked only when
    /// there is nothing.
    pub next_to_write: Option<u32>,
    /// The number of the first byte that TCP_INFO counts as received: see
    /// [`received_since`](super::received_since).
    pub first_received: u32,
}

/// The answer to an order: to [`Order::Stand`] in the order of the sockets, to others nothing.
pub type Stands = [Option<Stand>; 2];

/// Another process that carries out orders.
pub trait Repairer: Send + Sync {
    /// Carries out an order on these sockets.
    ///
    /// # Errors
    /// The system call that failed there; or that process has ended, or does not answer.
    fn carry_out(&self, order: &Order, sockets: &[BorrowedFd<'_>]) -> Result<Stands, CallError>;

    /// Whether it still answers. Once it does not, it never does again.
    fn is_there(&self) -> bool;
}

static OTHER: OnceLock<Box<dyn Repairer>> = OnceLock::new();

/// Names another process that carries out all orders from now on. Only the first call has an effect.
pub fn repair_by(other: Box<dyn Repairer>) {
    let _ = OTHER.set(other);
}

/// Whether orders can be carried out. False once the other process has gone; then it stays false.
#[must_use]
pub fn is_possible() -> bool {
    OTHER.get().is_none_or(|other| other.is_there())
}

/// Has an order carried out.
pub(super) fn give(order: &Order, sockets: &[BorrowedFd<'_>]) -> Result<Stands, CallError> {
    match OTHER.get() {
        Some(other) => other.carry_out(order, sockets),
        None => carry_out(order, sockets),
    }
}

/// Carries out an order in this process.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN in the network namespace's user namespace; EINVAL if the order has too many or
/// too few sockets.
pub fn carry_out(order: &Order, sockets: &[BorrowedFd<'_>]) -> Result<Stands, CallError> {
    match (*order, sockets) {
        (Order::Stand, [socket]) => return Ok([Some(stand(*socket)?), None]),
        (Order::Stand, [one, other]) => return Ok([Some(stand(*one)?), Some(stand(*other)?)]),
        (Order::AskPeers, sockets) => each(sockets, ask_peer)?,
        (Order::Silence, sockets) => each(sockets, silence)?,
        (Order::Reset { own, peer, expected }, []) => reset(own, peer, expected)?,
        (Order::AskUnattended { own, peer, numbers, timestamp }, [socket]) => {
            // Also where it fails half-way.
            let asked = ask_unattended(*socket, [own, peer], numbers, timestamp);
            asked.and(end_forced_reuse(*socket))?;
        }
        _ => return Err(CallError { call: "an order under repair", errno: Errno::INVAL }),
    }
    Ok([None; 2])
}

/// All of them, even if one fails.
fn each(
    sockets: &[BorrowedFd<'_>],
    work: impl Fn(BorrowedFd<'_>) -> Result<(), CallError>,
) -> Result<(), CallError> {
    sockets.iter().map(|socket| work(*socket)).fold(Ok(()), Result::and)
}

/// Repair is on for some microseconds. Switched off this way it sends nothing.
fn stand(socket: BorrowedFd<'_>) -> Result<Stand, CallError> {
    let is_reused = SockRef::from(&socket).reuse_address().named("getsockopt(SO_REUSEADDR)")?;
    set_repair(socket, REPAIR_ON)?;
    let done = stand_under_repair(socket);
    // The send queue must not stay chosen: see Stand.
    let left = choose(socket, NO_QUEUE);
    let off = set_repair(socket, REPAIR_OFF_WITHOUT_PROBE);
    // Leaving repair clears it, and a listener's next start needs it.
    let reused = SockRef::from(&socket).set_reuse_address(is_reused).named("setsockopt(SO_REUSEADDR)");
    let done = done?;
    left.and(off).and(reused)?;
    Ok(done)
}

fn stand_under_repair(socket: BorrowedFd<'_>) -> Result<Stand, CallError> {
    let has_unsent = ioctl_int(socket, SIOCOUTQNSD).named("ioctl(SIOCOUTQNSD)")? != 0;
    let mut next_to_write = None;
    if !has_unsent {
        choose(socket, SEND_QUEUE)?;
        next_to_write = Some(queue_number(socket)?);
    }
    choose(socket, RECEIVE_QUEUE)?;
    let first_received = loop {
        let next = queue_number(socket)?;
        let received = bytes_received(socket)?;
        // A segment may come in between.
        if queue_number(socket)? == next {
            break next.wrapping_sub(received);
        }
    };
    Ok(Stand { next_to_write, first_received })
}

fn ask_peer(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    let is_reused = SockRef::from(&socket).reuse_address().named("getsockopt(SO_REUSEADDR)")?;
    let asked = set_repair(socket, REPAIR_ON).and_then(|()| set_repair(socket, REPAIR_OFF_WITH_PROBE));
    // Leaving repair clears it: see stand.
    let reused = SockRef::from(&socket).set_reuse_address(is_reused).named("setsockopt(SO_REUSEADDR)");
    asked.and(reused)
}

fn silence(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    let on = set_repair(socket, REPAIR_ON);
    on.and(end_forced_reuse(socket))
}

/// Under repair a socket binds beside every other one (SK_FORCE_REUSE), also once its owner has disconnected
/// it. SO_REUSEADDR takes its place: a listener's next start needs that.
fn end_forced_reuse(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    SockRef::from(&socket).set_reuse_address(true).named("setsockopt(SO_REUSEADDR)")
}

fn reset(own: SocketAddr, peer: SocketAddr, expected: u32) -> Result<(), CallError> {
    let socket: OwnedFd = crate::socket::tcp_socket(own)?;
    let socket = socket.as_fd();
    crate::socket::set_transparent(socket, own)?;
    connect_silently(socket, [own, peer], &[(SEND_QUEUE, expected)])?;
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).named("setsockopt(SO_LINGER)")?;
    // Closing it sends the reset.
    set_repair(socket, REPAIR_OFF_WITHOUT_PROBE)
}

fn ask_unattended(
    socket: BorrowedFd<'_>,
    ends: [SocketAddr; 2],
    [expected, acknowledged]: [u32; 2],
    timestamp: Option<u32>,
) -> Result<(), CallError> {
    connect_silently(socket, ends, &[(SEND_QUEUE, expected), (RECEIVE_QUEUE, acknowledged)])?;
    if let Some(timestamp) = timestamp {
        send_timestamps(socket, timestamp).named("setsockopt(TCP_TIMESTAMP)")?;
    }
    // Until it is under repair again, its owner may write.
    set_repair(socket, REPAIR_OFF_WITH_PROBE)?;
    // It closes silently.
    set_repair(socket, REPAIR_ON)
}

/// Connects a new socket under repair, whose queues get these numbers: nothing is sent.
fn connect_silently(
    socket: BorrowedFd<'_>,
    [own, peer]: [SocketAddr; 2],
    numbers: &[(libc::c_int, u32)],
) -> Result<(), CallError> {
    set_repair(socket, REPAIR_ON)?;
    for (queue, number) in numbers {
        choose(socket, *queue)?;
        set_int(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, number.cast_signed())
            .named("setsockopt(TCP_QUEUE_SEQ)")?;
    }
    choose(socket, NO_QUEUE)?;
    let of = SockRef::from(&socket);
    of.bind(&own.into()).named("bind")?;
    of.connect(&peer.into()).named("connect")
}

/// From now on segments have timestamps that are not older than `newest`.
fn send_timestamps(socket: BorrowedFd<'_>, newest: u32) -> std::io::Result<()> {
    /// linux/tcp.h: TCPOPT_TIMESTAMP as `struct tcp_repair_opt` has it.
    const TIMESTAMPS: [u32; 2] = [8, 0];
    super::set_bytes(socket, libc::TCP_REPAIR_OPTIONS, &TIMESTAMPS.map(u32::to_ne_bytes).concat())?;
    // The lowest bit says microseconds (Linux 6.7).
    let even = newest.wrapping_add(1) & !1;
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, even.cast_signed())
}

/// Whether the TCP socket is under repair. Needs no capability.
///
/// # Errors
/// If getsockopt(2) fails.
pub fn is_under_repair(socket: BorrowedFd<'_>) -> Result<bool, CallError> {
    unsigned_option(socket, libc::TCP_REPAIR).named("getsockopt(TCP_REPAIR)").map(|value| value != 0)
}

fn set_repair(socket: BorrowedFd<'_>, value: libc::c_int) -> Result<(), CallError> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, value).named("setsockopt(TCP_REPAIR)")
}

fn choose(socket: BorrowedFd<'_>, queue: libc::c_int) -> Result<(), CallError> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue).named("setsockopt(TCP_REPAIR_QUEUE)")
}

fn queue_number(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    unsigned_option(socket, libc::TCP_QUEUE_SEQ).named("getsockopt(TCP_QUEUE_SEQ)")
}
