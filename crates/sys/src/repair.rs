//! What a TCP connection has sent and received so far, and closing it without a word (TCP_REPAIR).

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use socket2::SockRef;

use crate::{CallError, Named};

/// linux/tcp.h: the values of TCP_REPAIR and TCP_REPAIR_QUEUE.
const REPAIR_ON: libc::c_int = 1;
const REPAIR_OFF_WITH_PROBE: libc::c_int = 0;
const REPAIR_OFF_WITHOUT_PROBE: libc::c_int = -1;
const NO_QUEUE: libc::c_int = 0;
const RECEIVE_QUEUE: libc::c_int = 1;
const SEND_QUEUE: libc::c_int = 2;
/// linux/sockios.h
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// The received part of a connection's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The number of the byte that is expected next.
    pub next: u32,
    /// Bytes before it that have not been read.
    pub unread: u32,
}

/// What TCP_INFO says, as far as a hand-over needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Neither side has ended, even if the end lies unread.
    pub is_established: bool,
    /// Both sides send timestamps.
    pub has_timestamps: bool,
    /// Both sides understand SACK.
    pub has_sack: bool,
    /// ECN was agreed on.
    pub has_ecn: bool,
    /// The window scale of what the peer says.
    pub peer_scale: u8,
    /// The window scale of what the peer is told.
    pub own_scale: u8,
    /// The longest segment that the peer may send (without options).
    pub longest_in: u32,
    /// The path's MTU to the peer.
    pub path_mtu: u32,
}

/// The number of the byte that would be written next; `None` while bytes wait in the queue that were never sent.
///
/// While this queue is chosen the kernel takes for sent what it would send, so it is asked only when there is nothing.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN in the network namespace's user namespace.
pub fn next_to_write(socket: BorrowedFd<'_>) -> Result<Option<u32>, CallError> {
    if ioctl_int(socket, SIOCOUTQNSD).named("ioctl(SIOCOUTQNSD)")? != 0 {
        return Ok(None);
    }
    under_repair(socket, SEND_QUEUE, || queue_number(socket)).map(Some)
}

/// Reads how much has been received.
///
/// # Errors
/// As [`next_to_write`].
pub fn received(socket: BorrowedFd<'_>) -> Result<Received, CallError> {
    under_repair(socket, RECEIVE_QUEUE, || {
        loop {
            let next = queue_number(socket)?;
            let unread = ioctl_int(socket, libc::FIONREAD).named("ioctl(SIOCINQ)")?;
            // A segment may come in between.
            if queue_number(socket)? == next {
                return Ok(Received { next, unread });
            }
        }
    })
}

/// Bytes that can be read at once.
///
/// # Errors
/// EINVAL on a listener.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    ioctl_int(socket, libc::FIONREAD).named("ioctl(SIOCINQ)")
}

/// Has the peer say what it has received and takes: it is sent a segment as it comes when a window stays closed.
///
/// # Errors
/// As [`next_to_write`].
pub fn ask_peer(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    let is_reused = SockRef::from(&socket).reuse_address().named("getsockopt(SO_REUSEADDR)")?;
    let asked = set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON)
        .and_then(|()| set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_WITH_PROBE))
        .named("setsockopt(TCP_REPAIR)");
    // Leaving repair clears it: see under_repair.
    let reused = SockRef::from(&socket).set_reuse_address(is_reused).named("setsockopt(SO_REUSEADDR)");
    asked.and(reused)
}

/// Resets a connection that has no socket here. `expected`: the number that the peer expects; it believes no other one (RFC 5961, 3.2).
///
/// # Errors
/// If a system call fails.
pub fn reset(own: SocketAddr, peer: SocketAddr, expected: u32) -> Result<(), CallError> {
    let socket = crate::socket::tcp_socket(own)?;
    crate::socket::set_transparent(socket.as_fd(), own)?;
    // Under repair nothing is sent until the socket is closed.
    set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON)
        .named("setsockopt(TCP_REPAIR)")?;
    set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, SEND_QUEUE)
        .and_then(|()| {
            set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, expected.cast_signed())
        })
        .named("setsockopt(TCP_QUEUE_SEQ)")?;
    let of = SockRef::from(&socket);
    of.bind(&own.into()).named("bind")?;
    of.connect(&peer.into()).named("connect")?;
    of.set_linger(Some(std::time::Duration::ZERO)).named("setsockopt(SO_LINGER)")?;
    set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_WITHOUT_PROBE)
        .named("setsockopt(TCP_REPAIR)")
}

/// Asks the peer of a connection without a socket here whether it still has the connection, as a keepalive does: it answers a segment whose number
/// it has taken already. `expected`: the number that the peer expects; `acknowledged`: the one that we expect of it. `timestamp`: the newest that it was
/// told, if any. `before` gets the socket before that sends anything.
///
/// # Errors
/// If a system call fails.
pub fn ask_unattended(
    own: SocketAddr,
    peer: SocketAddr,
    [expected, acknowledged]: [u32; 2],
    timestamp: Option<u32>,
    before: impl FnOnce(BorrowedFd<'_>),
) -> Result<(), CallError> {
    let socket = connected(own, peer, [(SEND_QUEUE, expected), (RECEIVE_QUEUE, acknowledged)])?;
    let socket = socket.as_fd();
    if let Some(timestamp) = timestamp {
        send_timestamps(socket, timestamp).named("setsockopt(TCP_TIMESTAMP)")?;
    }
    before(socket);
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_WITH_PROBE)
        .and_then(|()| set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON))
        .named("setsockopt(TCP_REPAIR)")
}

/// A connected socket under repair, whose queues have these numbers. It closes silently.
fn connected(
    own: SocketAddr,
    peer: SocketAddr,
    numbers: [(libc::c_int, u32); 2],
) -> Result<OwnedFd, CallError> {
    let socket = crate::socket::tcp_socket(own)?;
    crate::socket::set_transparent(socket.as_fd(), own)?;
    // Under repair nothing is sent until the socket is closed.
    set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON)
        .named("setsockopt(TCP_REPAIR)")?;
    for (queue, number) in numbers {
        set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)
            .and_then(|()| {
                set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, number.cast_signed())
            })
            .named("setsockopt(TCP_QUEUE_SEQ)")?;
    }
    set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, NO_QUEUE)
        .named("setsockopt(TCP_REPAIR_QUEUE)")?;
    let of = SockRef::from(&socket);
    of.bind(&own.into()).named("bind")?;
    of.connect(&peer.into()).named("connect")?;
    Ok(socket)
}

/// From now on segments have timestamps that are not older than `newest`.
fn send_timestamps(socket: BorrowedFd<'_>, newest: u32) -> std::io::Result<()> {
    /// linux/tcp.h: TCPOPT_TIMESTAMP as `struct tcp_repair_opt` has it.
    const TIMESTAMPS: [u32; 2] = [8, 0];
    let options = TIMESTAMPS.map(u32::to_ne_bytes).concat();
    // SAFETY: the option takes pairs of 32-bit numbers; pointer and length name exactly the local that holds one, which outlives the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR_OPTIONS,
            options.as_ptr().cast(),
            8,
        )
    };
    result(answer)?;
    // The lowest bit says microseconds (Linux 6.7).
    let even = newest.wrapping_add(1) & !1;
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, even.cast_signed())
}

/// The kernel doesn't widen the receive buffer, and so the window that it offers (SO_BUF_LOCK, Linux 5.14), until it may again.
///
/// # Errors
/// ENOPROTOOPT on older kernels.
pub fn set_receive_buffer_fixed(socket: BorrowedFd<'_>, is_fixed: bool) -> Result<(), CallError> {
    /// asm-generic/socket.h, linux/socket.h
    const SO_BUF_LOCK: libc::c_int = 72;
    const SOCK_RCVBUF_LOCK: libc::c_int = 2;
    let locks = if is_fixed { SOCK_RCVBUF_LOCK } else { 0 };
    set_int(socket, libc::SOL_SOCKET, SO_BUF_LOCK, locks).named("setsockopt(SO_BUF_LOCK)")
}

/// When the socket is closed, the other end is not told: neither FIN nor RST. Close it at once.
///
/// # Errors
/// As [`next_to_write`]; then it is closed as ever.
pub fn close_silently(socket: BorrowedFd<'_>) -> Result<(), CallError> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON).named("setsockopt(TCP_REPAIR)")
}

/// What was agreed on when the connection was made, and how it stands.
///
/// # Errors
/// What getsockopt(2) says.
pub fn connection(socket: BorrowedFd<'_>) -> Result<Connection, CallError> {
    /// The kernel's enum tcp_state.
    const TCP_ESTABLISHED: u8 = 1;
    /// linux/tcp.h: TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK, TCPI_OPT_ECN.
    const OPTIONS: [u8; 3] = [1, 2, 8];
    // Up to tcpi_advmss.
    let info: [u8; 88] = tcp_info(socket)?;
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    // Bit fields: tcpi_snd_wscale stands first.
    let (first, second) = (info[6] & 15, info[6] >> 4);
    let (peer_scale, own_scale) =
        if cfg!(target_endian = "little") { (first, second) } else { (second, first) };
    let [has_timestamps, has_sack, has_ecn] = OPTIONS.map(|option| info[5] & option != 0);
    Ok(Connection {
        is_established: info[0] == TCP_ESTABLISHED,
        has_timestamps,
        has_sack,
        has_ecn,
        peer_scale,
        own_scale,
        longest_in: word(84),
        path_mtu: word(60),
    })
}

/// The window that the peer has offered, as the kernel knows it (Linux 5.4). For tests.
///
/// # Errors
/// As [`connection`].
pub fn offered_window(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    // tcpi_snd_wnd is the last word.
    let info: [u8; 232] = tcp_info(socket)?;
    Ok(u32::from_ne_bytes([info[228], info[229], info[230], info[231]]))
}

/// How many bytes the peer takes, counted from the first one that it has acknowledged: those, and the window behind them. For tests.
///
/// # Errors
/// As [`connection`].
pub fn offered_bytes(socket: BorrowedFd<'_>) -> Result<u64, CallError> {
    // Up to tcpi_bytes_acked.
    let info: [u8; 128] = tcp_info(socket)?;
    let [.., a, b, c, d, e, f, g, h] = info;
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]) + u64::from(offered_window(socket)?))
}

/// The beginning of `struct tcp_info`; zeros where the kernel's own is shorter.
fn tcp_info<const LEN: usize>(socket: BorrowedFd<'_>) -> Result<[u8; LEN], CallError> {
    let mut info = [0_u8; LEN];
    let mut length = libc::socklen_t::try_from(LEN).unwrap_or_default();
    // SAFETY: TCP_INFO writes at most as many bytes as `length` says, which is the size of the local.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    result(answer).named("getsockopt(TCP_INFO)")?;
    Ok(info)
}

/// Waits until no program of the kernel runs any more that ran when this was called (an RCU grace period): some 10 to 30 ms.
///
/// # Errors
/// EINVAL where the kernel has CPUs set aside (nohz_full).
pub fn wait_for_grace_period() -> Result<(), CallError> {
    /// linux/membarrier.h
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes three integers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    result(if answer < 0 { -1 } else { 0 }).named("membarrier(MEMBARRIER_CMD_GLOBAL)")
}

/// Repair is on for some microseconds. Switched off this way it sends nothing.
fn under_repair<T>(
    socket: BorrowedFd<'_>,
    queue: libc::c_int,
    work: impl FnOnce() -> Result<T, CallError>,
) -> Result<T, CallError> {
    let is_reused = SockRef::from(&socket).reuse_address().named("getsockopt(SO_REUSEADDR)")?;
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON).named("setsockopt(TCP_REPAIR)")?;
    let done = set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)
        .named("setsockopt(TCP_REPAIR_QUEUE)")
        .and_then(|()| work());
    // The send queue must not stay chosen: see next_to_write.
    let left = set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, NO_QUEUE)
        .named("setsockopt(TCP_REPAIR_QUEUE)");
    let off = set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_WITHOUT_PROBE)
        .named("setsockopt(TCP_REPAIR)");
    // Leaving repair clears it, and a listener's next start needs it.
    let reused = SockRef::from(&socket).set_reuse_address(is_reused).named("setsockopt(SO_REUSEADDR)");
    let done = done?;
    left.and(off).and(reused)?;
    Ok(done)
}

fn queue_number(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    let mut number = 0_u32;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the option is one C int; the kernel writes at most `length` bytes, which is the size of the local.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_QUEUE_SEQ,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    result(answer).named("getsockopt(TCP_QUEUE_SEQ)")?;
    Ok(number)
}

fn set_int(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> std::io::Result<()> {
    // SAFETY: the option takes one C int; pointer and length name exactly that local, which outlives the call.
    result(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), 4) })
}

/// Of requests that answer with one C int that is a count.
fn ioctl_int(socket: BorrowedFd<'_>, request: libc::Ioctl) -> std::io::Result<u32> {
    let mut count: libc::c_int = 0;
    // SAFETY: the requests of this module write one C int through the pointer, which is that of a live local.
    result(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut count) })?;
    Ok(count.unsigned_abs())
}

fn result(answer: libc::c_int) -> std::io::Result<()> {
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
