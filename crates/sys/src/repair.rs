//! TCP_REPAIR: reads what a TCP connection has sent and received so far, and closes the connection without
//! FIN or RST.
//!
//! The calls that need CAP_NET_ADMIN are [orders](Order). This process carries them out, or [another
//! one](repair_by).

mod order;

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

pub use self::order::{Order, Repairer, Stand, Stands, carry_out, is_possible, is_under_repair, repair_by};
use crate::{CallError, Named};

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
    /// Or its accurate kind (RFC 9768), or that may still be. Linux 7.0.
    pub has_accurate_ecn: bool,
    /// The window scale of what the peer says.
    pub peer_scale: u8,
    /// The window scale of what the peer is told.
    pub own_scale: u8,
    /// The longest segment that the peer may send (without options).
    pub longest_in: u32,
    /// The path's MTU to the peer.
    pub path_mtu: u32,
}

/// Whether bytes wait in the socket that were never sent.
///
/// # Errors
/// If ioctl(2) fails.
pub fn has_unsent(socket: BorrowedFd<'_>) -> Result<bool, CallError> {
    Ok(ioctl_int(socket, SIOCOUTQNSD).named("ioctl(SIOCOUTQNSD)")? != 0)
}

/// Reads where the connection stands.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN in the network namespace's user namespace, if [`repair_by`] has named nobody
/// who has it; what the kernel says; or the process that [`repair_by`] has named does not answer.
pub fn stand(socket: BorrowedFd<'_>) -> Result<Stand, CallError> {
    let [stand, _] = order::give(&Order::Stand, &[socket])?;
    stand.ok_or(NO_ANSWER)
}

/// As [`stand`], of both sockets of a session.
///
/// # Errors
/// As [`stand`].
pub fn stands(sockets: [BorrowedFd<'_>; 2]) -> Result<[Stand; 2], CallError> {
    let [one, other] = order::give(&Order::Stand, &sockets)?;
    Ok([one.ok_or(NO_ANSWER)?, other.ok_or(NO_ANSWER)?])
}

const NO_ANSWER: CallError = CallError { call: "an order under repair", errno: rustix::io::Errno::PROTO };

/// Reads how much has been received, by the number of the first byte of [`Stand`]. That needs no capability:
/// the kernel counts the numbers that it has received (TCP_INFO), an end (FIN) like a byte.
///
/// # Errors
/// If getsockopt(2) or ioctl(2) fails.
pub fn received_since(socket: BorrowedFd<'_>, first: u32) -> Result<Received, CallError> {
    loop {
        let received = bytes_received(socket)?;
        let unread = unread_bytes(socket)?;
        // A segment may come in between.
        if bytes_received(socket)? == received {
            return Ok(Received { next: first.wrapping_add(received), unread });
        }
    }
}

/// The lower half of tcpi_bytes_received (Linux 4.1).
fn bytes_received(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    let info: [u8; 136] = tcp_info(socket)?;
    let half = if cfg!(target_endian = "little") { 128 } else { 132 };
    Ok(u32::from_ne_bytes([info[half], info[half + 1], info[half + 2], info[half + 3]]))
}

/// Bytes that can be read at once.
///
/// # Errors
/// EINVAL on a listener.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> Result<u32, CallError> {
    ioctl_int(socket, libc::FIONREAD).named("ioctl(SIOCINQ)")
}

/// Has the peers of two sockets say what they have received and take: each is sent a segment as it comes when
/// a window stays closed.
///
/// # Errors
/// As [`stand`].
pub fn ask_peers(sockets: [BorrowedFd<'_>; 2]) -> Result<(), CallError> {
    order::give(&Order::AskPeers, &sockets).map(drop)
}

/// Resets a connection that has no socket here. `expected`: the number that the peer expects; it believes no
/// other one (RFC 5961, 3.2).
///
/// # Errors
/// As [`stand`].
pub fn reset(own: SocketAddr, peer: SocketAddr, expected: u32) -> Result<(), CallError> {
    order::give(&Order::Reset { own, peer, expected }, &[]).map(drop)
}

/// Asks the peer of a connection without a socket here whether it still has the connection, as a keepalive
/// does: it answers a segment whose number it has taken already. `expected`: the number that the peer
/// expects; `acknowledged`: the one that we expect of it. `timestamp`: the newest that it was told, if any.
/// `before` gets the socket before that sends anything.
///
/// # Errors
/// As [`stand`].
pub fn ask_unattended(
    own: SocketAddr,
    peer: SocketAddr,
    numbers: [u32; 2],
    timestamp: Option<u32>,
    before: impl FnOnce(BorrowedFd<'_>),
) -> Result<(), CallError> {
    let socket = crate::socket::tcp_socket(own)?;
    let socket = socket.as_fd();
    crate::socket::set_transparent(socket, own)?;
    before(socket);
    order::give(&Order::AskUnattended { own, peer, numbers, timestamp }, &[socket]).map(drop)
}

/// The kernel doesn't widen the receive buffer, and so the window that it offers (SO_BUF_LOCK, Linux 5.14),
/// until it may again.
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

/// When the sockets are closed, the other ends are not told: neither FIN nor RST. Close them at once.
///
/// # Errors
/// As [`stand`]; then one of them, or both, are closed as ever.
pub fn silence(sockets: &[BorrowedFd<'_>]) -> Result<(), CallError> {
    order::give(&Order::Silence, sockets).map(drop)
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
    /// Of `tcpi_ecn_mode`, the first two bits of the last word: TCPI_ECN_MODE_ACCECN and PENDING have the
    /// second one. Older kernels say less, or 0.
    const ECN_MODE_AT: usize = 276;
    let info: [u8; 280] = tcp_info(socket)?;
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
        has_accurate_ecn: info[ECN_MODE_AT] & if cfg!(target_endian = "little") { 2 } else { 0x80 } != 0,
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

/// How many bytes the peer takes, counted from the first one that it has acknowledged: those, and the window
/// behind them. For tests.
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

/// Waits until no program of the kernel runs any more that ran when this was called (an RCU grace period):
/// some 10 to 30 ms.
///
/// # Errors
/// EINVAL where the kernel has CPUs set aside (nohz_full).
pub fn wait_for_grace_period() -> Result<(), CallError> {
    /// linux/membarrier.h
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes three integers and touches no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    result(if answer < 0 { -1 } else { 0 }).named("membarrier(MEMBARRIER_CMD_GLOBAL)")
}

/// An option of TCP that is one C int.
fn unsigned_option(socket: BorrowedFd<'_>, option: libc::c_int) -> std::io::Result<u32> {
    let mut value = 0_u32;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the option is one C int; the kernel writes at most `length` bytes, which is the size of the
    // local.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    result(answer)?;
    Ok(value)
}

fn set_bytes(socket: BorrowedFd<'_>, option: libc::c_int, bytes: &[u8]) -> std::io::Result<()> {
    let length = libc::socklen_t::try_from(bytes.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: pointer and length name exactly the slice, which outlives the call; the kernel only reads it.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, bytes.as_ptr().cast(), length)
    };
    result(answer)
}

pub(crate) fn set_int(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> std::io::Result<()> {
    // SAFETY: the option takes one C int; pointer and length name exactly that local, which outlives the
    // call.
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
