//! Examines the first bytes of a connection without taking them, and takes exactly the header.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use truepeer_policy::{
    Client, ClientAddr, HeaderError, HeaderReader, HeaderRule, Opening, Origin, Refusal, SenderAddr,
    speaks_for_itself,
};
use truepeer_proto::Header;
use truepeer_sys::marked::getsockname;

use crate::bans::is_banned;
use crate::rules::RunRules;
use crate::wake::WakeUp;

/// Longer than almost every header. A longer one is examined again with more room.
const FIRST_LOOK_BYTES: usize = 1024;

/// What a connection starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// Undecided: more bytes must come ([`crate::Late`]).
    NeedMore,
    /// A header that names the client. [`take`] it, and store the connection's name.
    Named {
        /// The client.
        client: ClientAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
        /// The header's length in bytes.
        consumed: usize,
    },
    /// The sender is the client: no header and none required, or one that names no client (LOCAL, UNKNOWN).
    Plain {
        /// The header's length in bytes; 0 without one.
        consumed: usize,
    },
    /// A wake-up of truepeer's: close it. A connection whose header came late may be ready.
    WakeUp,
    /// Close it; the application never sees it.
    Refused(Refused),
}

/// Why the application never sees a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The policy refuses it.
    #[error(transparent)]
    Policy(#[from] Refusal),
    /// The header is missing or invalid.
    #[error("{}{sender}: {error}", introduces(.error))]
    Header {
        /// Its sender.
        sender: SenderAddr,
        /// The error.
        error: HeaderError,
    },
    /// It was reset during the hand-over.
    #[error("{sender} closed the connection before it was handed over")]
    Left {
        /// Its sender.
        sender: SenderAddr,
    },
    /// There is no room for its client's name ([`crate::NamesFull`]).
    #[error("no room to store the client of the connection from {sender}: too many connections are open")]
    NoRoom {
        /// Its sender.
        sender: SenderAddr,
    },
}

fn introduces(error: &HeaderError) -> &'static str {
    if matches!(error, HeaderError::Invalid { .. }) { "no valid PROXY header from " } else { "" }
}

impl Refused {
    /// A label to group complaints by. `None` for normal events that need no complaint: a port scan, a health
    /// check by connect.
    pub fn complaint(&self) -> Option<&'static str> {
        match self {
            Self::Policy(refusal) => Some(refusal.reason()),
            Self::Header { error, .. } => error.complaint(),
            Self::Left { .. } => None,
            Self::NoRoom { .. } => Some("names_full"),
        }
    }

    /// The sender of the connection.
    pub fn sender(&self) -> Option<SenderAddr> {
        match *self {
            Self::Header { sender, .. }
            | Self::Left { sender }
            | Self::NoRoom { sender }
            | Self::Policy(
                Refusal::SenderNotAllowed { sender }
                | Refusal::HeaderMissing { sender }
                | Refusal::HeaderForbidden { sender }
                | Refusal::HeaderUnproved { sender, .. }
                | Refusal::ClaimRefused { sender, .. }
                | Refusal::ClientDenied { sender, .. }
                | Refusal::ClientBanned { sender, .. },
            ) => Some(sender),
            Self::Policy(_) => None,
        }
    }
}

/// Looks at what has arrived on an accepted connection; never waits, takes nothing. `sender` is what `accept`
/// returned: asked for later, the kernel has forgotten the sender of a connection that was reset.
pub fn look(socket: BorrowedFd<'_>, sender: SenderAddr, rules: &RunRules, wake: &WakeUp) -> Look {
    let checker = Checker { socket, sender, rules, wake };
    let mut buffer = [0; FIRST_LOOK_BYTES];
    match peek(socket, &mut buffer) {
        Peeked::Bytes(count) if count < FIRST_LOOK_BYTES => checker.check(&buffer[..count]),
        Peeked::Bytes(_) => match checker.check(&buffer) {
            Look::NeedMore => checker.check_long(),
            decided => decided,
        },
        Peeked::Nothing => checker.check(&[]),
        Peeked::End => checker.check_ended(&[]),
        Peeked::Reset => checker.left(),
    }
}

enum Peeked {
    Bytes(usize),
    Nothing,
    End,
    Reset,
}

fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Peeked {
    match retry_on_intr(|| recv(socket, &mut *buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT)) {
        Ok((0, _)) => Peeked::End,
        Ok((count, _)) => Peeked::Bytes(count),
        Err(Errno::AGAIN) => Peeked::Nothing,
        Err(_) => Peeked::Reset,
    }
}

struct Checker<'a> {
    socket: BorrowedFd<'a>,
    sender: SenderAddr,
    rules: &'a RunRules,
    wake: &'a WakeUp,
}

impl Checker<'_> {
    fn check(&self, bytes: &[u8]) -> Look {
        self.ask(bytes, |reader| reader.on_bytes(bytes))
    }

    /// The verdict of [`HeaderReader`], except for wake-ups: they don't come from a sender, and one whose
    /// bytes have not arrived looks like a silent sender.
    fn ask<'b>(&self, bytes: &'b [u8], ask: impl FnOnce(HeaderReader) -> Opening<'b>) -> Look {
        if self.wake.is_ours(bytes) {
            return Look::WakeUp;
        }
        let may_be_ours = || bytes.is_empty() && self.is_from_here();
        let reader = match self.rules.reader(self.sender) {
            Ok(reader) => reader,
            Err(_) if may_be_ours() => return Look::NeedMore,
            Err(refusal) => return Look::Refused(refusal.into()),
        };
        if reader.rule == HeaderRule::Forbid && may_be_ours() {
            return Look::NeedMore;
        }
        match ask(reader) {
            Opening::NeedMore => Look::NeedMore,
            Opening::Header { header, consumed } => self.with_header(&header, consumed),
            Opening::NoHeader => self.without_header(),
            Opening::Refused(error) => Look::Refused(Refused::Header { sender: self.sender, error }),
        }
    }

    fn with_header(&self, header: &Header<'_>, consumed: usize) -> Look {
        match self.client(Some(header)) {
            Err(refusal) => Look::Refused(refusal.into()),
            Ok(client) => match (client.origin, client.destination) {
                (Origin::Header, Some(destination)) => {
                    Look::Named { client: client.addr, destination, consumed }
                }
                _ => Look::Plain { consumed },
            },
        }
    }

    fn client(&self, header: Option<&Header<'_>>) -> Result<Client, Refusal> {
        let client = self.rules.policy.client(self.sender, header)?;
        let port = || self.local().map_or(0, |local| local.port());
        if !speaks_for_itself(self.sender, client.addr, client.origin) && is_banned(client.addr, port) {
            return Err(Refusal::ClientBanned { sender: self.sender, client: client.addr });
        }
        Ok(client)
    }

    fn local(&self) -> Option<SocketAddr> {
        getsockname(self.socket).ok().and_then(|local| SocketAddr::try_from(local).ok())
    }

    /// As much of a long header as there may be.
    fn check_long(&self) -> Look {
        let mut buffer = vec![0; self.rules.limits.max_len.max(FIRST_LOOK_BYTES)];
        match peek(self.socket, &mut buffer) {
            Peeked::Bytes(count) => self.check(&buffer[..count]),
            Peeked::Nothing | Peeked::End | Peeked::Reset => Look::NeedMore,
        }
    }

    /// No more bytes than these will come.
    fn check_ended(&self, bytes: &[u8]) -> Look {
        self.decide(self.ask(bytes, |reader| reader.on_end(bytes)))
    }

    /// So no wake-up will come either.
    fn decide(&self, look: Look) -> Look {
        match (look, self.rules.policy.admit(self.sender)) {
            (Look::NeedMore, Ok(HeaderRule::Forbid)) => self.without_header(),
            (Look::NeedMore, Err(_)) => self.left(),
            (look, _) => look,
        }
    }

    fn left(&self) -> Look {
        Look::Refused(Refused::Header { sender: self.sender, error: HeaderError::Absent })
    }

    fn without_header(&self) -> Look {
        match self.client(None) {
            Ok(_) => Look::Plain { consumed: 0 },
            Err(refusal) => Look::Refused(refusal.into()),
        }
    }

    /// It may be a wake-up whose bytes have not arrived.
    fn is_from_here(&self) -> bool {
        let ip = self.sender.ip();
        ip.is_loopback() || self.local().is_some_and(|local| local.ip().to_canonical() == ip)
    }
}

/// Whether this decision hands over a connection that may have a header (`optional`) and has sent nothing in
/// its time.
pub(crate) fn is_silent(socket: BorrowedFd<'_>, sender: SenderAddr, look: &Look, rules: &RunRules) -> bool {
    *look == Look::Plain { consumed: 0 }
        && rules.policy.admit(sender) == Ok(HeaderRule::Optional)
        && matches!(peek(socket, &mut [0]), Peeked::Nothing)
}

/// The warning for such a connection that can't be guarded, after its sender.
pub const EXPOSED: &str = "has sent nothing in time, so it is served as a client without a header \
    (optional); a header that comes now is data for the program, because the filter that would drop it \
    (SO_ATTACH_FILTER) needs CAP_NET_ADMIN on this kernel, or the program has a filter of its own; if the \
    sender is a balancer, let it send its header at once and use --header require";

/// Decides about a connection on which [`look`] could not decide, and which will send no more bytes.
pub(crate) fn on_end(socket: BorrowedFd<'_>, sender: SenderAddr, rules: &RunRules, wake: &WakeUp) -> Look {
    let checker = Checker { socket, sender, rules, wake };
    with_all(&checker, |bytes| checker.check_ended(bytes))
}

/// Decides about a connection on which [`look`] could not decide, this long after it was accepted.
/// [`Look::NeedMore`] with a deadline if it may take longer.
pub(crate) fn on_timeout(
    socket: BorrowedFd<'_>,
    sender: SenderAddr,
    rules: &RunRules,
    wake: &WakeUp,
    waited: Duration,
) -> (Look, Duration) {
    let checker = Checker { socket, sender, rules, wake };
    let mut deadline = Duration::ZERO;
    let look = with_all(&checker, |bytes| {
        deadline = rules.deadline(sender, bytes.len());
        // The rest may have come by now: after a pause, more are ready than one turn looks at.
        let look = checker.ask(bytes, |reader| match reader.on_bytes(bytes) {
            Opening::NeedMore => reader.on_timeout(bytes, waited),
            decided => decided,
        });
        if waited < deadline { look } else { checker.decide(look) }
    });
    (look, deadline)
}

fn with_all(checker: &Checker<'_>, decide: impl FnOnce(&[u8]) -> Look) -> Look {
    let mut buffer = vec![0; checker.rules.limits.max_len.max(FIRST_LOOK_BYTES)];
    match peek(checker.socket, &mut buffer) {
        Peeked::Bytes(count) => decide(&buffer[..count]),
        Peeked::Nothing | Peeked::End => decide(&[]),
        Peeked::Reset => checker.left(),
    }
}

/// Removes the header from the stream: exactly the `consumed` bytes that [`look`] has seen.
///
/// # Errors
/// The error of `recv`; `EPROTO` if another reader has taken bytes meanwhile.
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
