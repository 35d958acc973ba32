//! Looking at what a connection begins with, without taking it, and taking exactly the header.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, getsockname, recv};
use truepeer_policy::{ClientAddr, HeaderRule, Origin, Refusal, SenderAddr};
use truepeer_proto::{DecodeError, DecodeErrorKind, Decoded, decode, sniff};

use crate::{Rules, WakeUp};

/// Longer than almost every header; what is longer is looked at once more.
const FIRST_LOOK_BYTES: usize = 1024;

/// What a connection begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// Not decided: more has to come ([`crate::Late`]).
    NeedMore,
    /// A header that names the client. [`take`] it, and give the connection its name.
    Named {
        /// The true host.
        client: ClientAddr,
        /// What the client connected to.
        destination: SocketAddr,
        /// The header's length in bytes.
        consumed: usize,
    },
    /// The sender is the client: no header and none needed, or one that names nobody (LOCAL, UNKNOWN).
    Plain {
        /// The header's length in bytes; 0 without one.
        consumed: usize,
    },
    /// Ours, to wake the application: to be closed. A connection whose header came late may be ready.
    WakeUp,
    /// To be closed; the application never sees it.
    Refused(Refused),
}

/// Why the application never sees a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// By the policy.
    #[error(transparent)]
    Policy(#[from] Refusal),
    /// No header, or a wrong one.
    #[error("no valid PROXY header from {sender}: {error}{}", seems(*.looks_like))]
    Header {
        /// Who sent it.
        sender: SenderAddr,
        /// What is wrong with it.
        error: DecodeError,
        /// The protocol that the first bytes belong to.
        looks_like: Option<&'static str>,
    },
    /// It ended, or was reset, before its header was complete.
    #[error("{sender} left before its PROXY header was complete")]
    Left {
        /// Who left.
        sender: SenderAddr,
    },
    /// Its header has not come in time.
    #[error("no complete PROXY header from {sender} within {} s: is send-proxy on?", .waited.as_secs_f32())]
    Late {
        /// Who is late.
        sender: SenderAddr,
        /// How long it had.
        waited: Duration,
    },
    /// There is no room for its client's name ([`crate::NamesFull`]).
    #[error("the connection from {sender} can't be given its client's name: too many are open")]
    NoRoom {
        /// Who connected.
        sender: SenderAddr,
    },
}

fn seems(looks_like: Option<&str>) -> String {
    looks_like
        .map_or_else(String::new, |name| format!("; the first bytes look like: {name}; is send-proxy on?"))
}

impl Refused {
    /// A label to group complaints by; `None` if it is no reason to complain: a port scan, a health check by connect.
    pub fn complaint(&self) -> Option<&'static str> {
        match self {
            Self::Policy(refusal) => Some(refusal.reason()),
            Self::Header { error, .. } => Some(error.kind.as_str()),
            Self::Left { .. } => None,
            Self::Late { .. } => Some("header_timeout"),
            Self::NoRoom { .. } => Some("names_full"),
        }
    }

    /// Whose connection it was.
    pub fn sender(&self) -> Option<SenderAddr> {
        match *self {
            Self::Header { sender, .. }
            | Self::Left { sender }
            | Self::Late { sender, .. }
            | Self::NoRoom { sender }
            | Self::Policy(
                Refusal::SenderNotAllowed { sender }
                | Refusal::HeaderMissing { sender }
                | Refusal::HeaderForbidden { sender }
                | Refusal::ClaimRefused { sender, .. }
                | Refusal::ClientDenied { sender, .. },
            ) => Some(sender),
            Self::Policy(_) => None,
        }
    }
}

/// Looks at what has arrived on an accepted connection; never waits, takes nothing. `sender` is what `accept` returned:
/// asked for later, the kernel has forgotten the sender of a connection that was reset.
pub fn look(socket: BorrowedFd<'_>, sender: SenderAddr, rules: &Rules, wake: &WakeUp) -> Look {
    let judge = Judge { socket, sender, rules, wake };
    let mut buffer = [0; FIRST_LOOK_BYTES];
    match peek(socket, &mut buffer) {
        Peeked::Bytes(count) if count < FIRST_LOOK_BYTES => judge.judge(&buffer[..count]),
        Peeked::Bytes(_) => match judge.judge(&buffer) {
            Look::NeedMore => judge.judge_long(),
            decided => decided,
        },
        Peeked::Nothing => judge.judge(&[]),
        Peeked::End => judge.judge_ended(&[]),
    }
}

enum Peeked {
    Bytes(usize),
    Nothing,
    End,
}

fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Peeked {
    match retry_on_intr(|| recv(socket, &mut *buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT)) {
        Ok((0, _)) => Peeked::End,
        Ok((count, _)) => Peeked::Bytes(count),
        Err(Errno::AGAIN) => Peeked::Nothing,
        Err(_) => Peeked::End,
    }
}

struct Judge<'a> {
    socket: BorrowedFd<'a>,
    sender: SenderAddr,
    rules: &'a Rules,
    wake: &'a WakeUp,
}

impl Judge<'_> {
    fn judge(&self, bytes: &[u8]) -> Look {
        if self.wake.is_ours(bytes) {
            return Look::WakeUp;
        }
        let rule = match self.rules.policy.admit(self.sender) {
            Ok(rule) => rule,
            Err(_) if bytes.is_empty() && self.is_from_here() => return Look::NeedMore,
            Err(refusal) => return Look::Refused(refusal.into()),
        };
        if rule == HeaderRule::Forbid {
            return if bytes.is_empty() && self.is_from_here() {
                Look::NeedMore
            } else {
                Look::Plain { consumed: 0 }
            };
        }
        match decode(bytes, self.rules.limits) {
            Ok(Decoded::NeedMore { .. }) => Look::NeedMore,
            Ok(Decoded::Done { header, consumed }) => {
                match self.rules.policy.client(self.sender, Some(&header)) {
                    Err(refusal) => Look::Refused(refusal.into()),
                    Ok(client) => match (client.origin, client.destination) {
                        (Origin::Header, Some(destination)) => {
                            Look::Named { client: client.addr, destination, consumed }
                        }
                        _ => Look::Plain { consumed },
                    },
                }
            }
            Err(error) if rule == HeaderRule::Optional && is_no_header(error) => self.without_header(),
            Err(error) => {
                Look::Refused(Refused::Header { sender: self.sender, error, looks_like: sniff(bytes) })
            }
        }
    }

    /// As much of a long header as there may be.
    fn judge_long(&self) -> Look {
        let mut buffer = vec![0; self.rules.limits.max_len.max(FIRST_LOOK_BYTES)];
        match peek(self.socket, &mut buffer) {
            Peeked::Bytes(count) => self.judge(&buffer[..count]),
            Peeked::Nothing | Peeked::End => Look::NeedMore,
        }
    }

    /// No more bytes than these will come.
    fn judge_ended(&self, bytes: &[u8]) -> Look {
        match self.judge(bytes) {
            Look::NeedMore => match self.rules.policy.admit(self.sender) {
                Ok(HeaderRule::Optional | HeaderRule::Forbid) => self.without_header(),
                _ => Look::Refused(Refused::Left { sender: self.sender }),
            },
            decided => decided,
        }
    }

    fn without_header(&self) -> Look {
        match self.rules.policy.client(self.sender, None) {
            Ok(_) => Look::Plain { consumed: 0 },
            Err(refusal) => Look::Refused(refusal.into()),
        }
    }

    /// It may be a wake-up whose bytes are still to come.
    fn is_from_here(&self) -> bool {
        let ip = self.sender.ip();
        ip.is_loopback()
            || getsockname(self.socket)
                .ok()
                .and_then(|local| SocketAddr::try_from(local).ok())
                .is_some_and(|local| local.ip().to_canonical() == ip)
    }
}

fn is_no_header(error: DecodeError) -> bool {
    matches!(error.kind, DecodeErrorKind::NotProxy | DecodeErrorKind::VersionNotAccepted)
}

/// What becomes of a connection that [`look`] could not decide on in time, or whose other end has gone (`left`).
pub(crate) fn give_up(
    socket: BorrowedFd<'_>,
    sender: SenderAddr,
    rules: &Rules,
    wake: &WakeUp,
    left: bool,
) -> Look {
    let judge = Judge { socket, sender, rules, wake };
    let mut buffer = vec![0; rules.limits.max_len.max(FIRST_LOOK_BYTES)];
    let count = match peek(socket, &mut buffer) {
        Peeked::Bytes(count) => count,
        Peeked::Nothing | Peeked::End => 0,
    };
    match judge.judge_ended(&buffer[..count]) {
        Look::Refused(Refused::Left { sender }) if !left => {
            Look::Refused(Refused::Late { sender, waited: rules.patience(sender) })
        }
        decided => decided,
    }
}

/// Takes the header off the stream: exactly `consumed` bytes that [`look`] has seen.
///
/// # Errors
/// What `recv` says; `EPROTO` if somebody else has taken bytes meanwhile.
pub fn take(socket: BorrowedFd<'_>, consumed: usize) -> Result<(), Errno> {
    let mut scrap = [0; FIRST_LOOK_BYTES];
    let mut left = consumed;
    while left > 0 {
        let part = left.min(scrap.len());
        match retry_on_intr(|| recv(socket, &mut scrap[..part], RecvFlags::DONTWAIT))? {
            (0, _) => return Err(Errno::PROTO),
            (count, _) => left -= count,
        }
    }
    Ok(())
}
