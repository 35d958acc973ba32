//! Wakes an application that waits for its listener to become readable. Only a connection does that.
//!
//! A connection whose header came late was accepted long ago, so the application's epoll has nothing to
//! report. truepeer connects to the listener itself, sends a secret word and resets the connection. Whoever
//! accepts it recognises the word, closes it, and finds the late connection instead.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with, sockopt::set_socket_linger,
};
use rustix::rand::{GetRandomFlags, getrandom};
use truepeer_proto::{Addresses, Command, EncodeError, V2Encoder};
use truepeer_sys::marked::connect;
use truepeer_sys::socket::namespace_cookie;

use crate::listener::{ListenerAddr, namespace_of};

/// A TLV type for experiments (PROXY 2.2.8). Any other program that reads it takes it for a health check.
const TLV: u8 = 0xF6;
/// Signature, TLV header, word.
const LEN: usize = 16 + 3 + WORD_LEN;
const WORD_LEN: usize = 16;
/// How long connecting to a full queue may block.
const CONNECT_MS: i64 = 200;

/// The secret word of a program and its children.
#[derive(Debug, Clone)]
pub struct WakeUp {
    message: [u8; LEN],
}

impl WakeUp {
    /// Creates a new word.
    ///
    /// # Errors
    /// Those of getrandom(2).
    pub fn new() -> Result<Self, Errno> {
        let mut word = [0; WORD_LEN];
        getrandom(&mut word, GetRandomFlags::empty())?;
        Ok(Self::with_word(word))
    }

    /// The word that another of these processes has chosen.
    pub fn with_word(word: [u8; WORD_LEN]) -> Self {
        let mut message = [0; LEN];
        // The buffer is large enough by construction. A message of zeros would be refused like any other
        // non-header.
        let _: Result<usize, EncodeError> = encode(&mut message, &word);
        Self { message }
    }

    /// The word, for the program's other processes.
    pub fn word(&self) -> [u8; WORD_LEN] {
        let mut word = [0; WORD_LEN];
        word.copy_from_slice(&self.message[LEN - WORD_LEN..]);
        word
    }

    pub(crate) fn is_ours(&self, bytes: &[u8]) -> bool {
        bytes == self.message
    }

    /// Makes the listener readable once more. Blocks for at most a fifth of a second for each address, if the
    /// queue is full.
    ///
    /// # Errors
    /// Those of socket(2) and connect(2); `ETIMEDOUT` if the queue stayed full: try again later.
    /// `EHOSTUNREACH` for a listener of a device or of another network namespace: another listener may
    /// answer there.
    pub fn ring(&self, listener: ListenerAddr) -> Result<(), Errno> {
        self.ring_by(listener, ringing_socket, drop)
    }

    /// Rings by a socket that `open` makes of [`ringing_socket`].
    ///
    /// # Errors
    /// Those of [`Self::ring`] and `open`.
    pub fn ring_by(
        &self,
        listener: ListenerAddr,
        open: impl Fn(AddressFamily) -> Result<OwnedFd, Errno>,
        close: impl Fn(OwnedFd),
    ) -> Result<(), Errno> {
        const LOOPBACK: u32 = 1;
        let (first, second) = reachable(listener.local);
        let ring = |to: SocketAddr| {
            let socket = open(if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
            let is_elsewhere =
                listener.device > LOOPBACK || listener.namespace != namespace_of(socket.as_fd());
            let rung = if is_elsewhere { Err(Errno::HOSTUNREACH) } else { self.ring_at(socket.as_fd(), to) };
            close(socket);
            rung
        };
        ring(first).or_else(|error| second.and_then(|second| ring(second).ok()).ok_or(error))
    }

    fn ring_at(&self, socket: BorrowedFd<'_>, to: SocketAddr) -> Result<(), Errno> {
        match connect(socket, to) {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => {
                let timeout = Timespec { tv_sec: 0, tv_nsec: CONNECT_MS * 1_000_000 };
                let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
                if poll(&mut fds, Some(&timeout))? == 0 {
                    return Err(Errno::TIMEDOUT);
                }
            }
            Err(error) => return Err(error),
        }
        send(socket, &self.message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    }
}

/// The socket of [`WakeUp::ring`].
///
/// # Errors
/// Those of socket(2).
pub fn ringing_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Reset instead of close: it leaves no TIME_WAIT, and the bytes sent can still be read.
    set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(socket)
}

/// The warning for a listener that [`WakeUp::ring`] can't reach ([`is_elsewhere`]).
pub const ELSEWHERE: &str = "the program listens in another network namespace, to which truepeer can't \
    connect: a connection whose header comes late may wait for the next one; start truepeer in that \
    namespace";

/// Whether a listener is in another network namespace than the caller, which [`WakeUp::ring`] can't reach.
/// Unknown before Linux 5.14.
pub fn is_elsewhere(listener: BorrowedFd<'_>) -> bool {
    let Ok(own) = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None) else {
        return false;
    };
    match (namespace_cookie(listener), namespace_cookie(own.as_fd())) {
        (Some(theirs), Some(ours)) => theirs != ours,
        _ => false,
    }
}

fn encode(message: &mut [u8], word: &[u8]) -> Result<usize, EncodeError> {
    V2Encoder::new(message, Command::Local, &Addresses::Unspecified)?.tlv(TLV, word)?.finish()
}

/// The address to connect to in order to reach a listener bound to `local`, and another one if that fails: a
/// listener on `::` mostly takes IPv4 connections too, and IPv6 may be switched off.
fn reachable(local: SocketAddr) -> (SocketAddr, Option<SocketAddr>) {
    let v4 = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), local.port());
    match local.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (v4, None),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            (SocketAddr::new(Ipv6Addr::LOCALHOST.into(), local.port()), Some(v4))
        }
        _ => (local, None),
    }
}
