//! The sending side of datagrams: places the header, whichever call sends, and removes it from answers that
//! carry it back (`spp`).
//!
//! | dialect | sent |
//! |---|---|
//! | `every`, `spp` | the header, and the datagram behind it |
//! | `first` | the same for a flow's first datagram; later ones are unchanged |
//! | `standalone` | the header alone before the first datagram of a flow |

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_protocol, socket_type};
use rustix::net::{AddressFamily, SocketType, bind, connect, getpeername, getsockname, ipproto, socket};
use rustix::time::{ClockId, clock_gettime};
use truepeer_policy::Dialect;
use truepeer_proto::{Transport, spp};

use crate::flows::{Flow, Flows, Known};
use crate::sending::{ConnectSettings, OutgoingHeader};

/// Whether this is a UDP socket. Other sockets send datagrams, too (ping).
pub fn sends_datagrams(socket: BorrowedFd<'_>) -> bool {
    socket_type(socket) == Ok(SocketType::DGRAM)
        && matches!(socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
        && socket_protocol(socket) == Ok(Some(ipproto::UDP))
}

/// Sends a program's datagrams with headers.
#[derive(Debug)]
pub struct Datagrams {
    dialect: Dialect,
    flows: Flows,
}

/// Sends a datagram that consists of these bytes and, if requested, the program's own. Returns the number of
/// bytes sent.
pub type Send<'a> = &'a mut dyn FnMut(&[u8], Own) -> Result<usize, Errno>;

/// How a program's own bytes are sent relative to the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// In the same datagram, after the header.
    Behind,
    /// In a separate datagram.
    Apart,
}

impl Datagrams {
    /// Creates it for a dialect. No flow has started.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(dialect: Dialect) -> Result<Self, Errno> {
        Ok(Self { dialect, flows: Flows::new()? })
    }

    /// Whether only the start of a flow has a header.
    pub fn has_flows(&self) -> bool {
        self.dialect.has_bare_datagrams()
    }

    /// Whether answers carry the header back. It must then be removed.
    pub fn is_carried_back(&self) -> bool {
        self.dialect == Dialect::Spp
    }

    /// Sends a program's message from this UDP socket, with its header where the dialect requires one.
    /// Returns how many of the program's own bytes were sent, or `None` if the destination gets no
    /// headers: then nothing was sent.
    ///
    /// A socket without a port gets one, as the kernel would do next. `now` is the result of [`now`].
    ///
    /// # Errors
    /// Those of `send`; those of bind(2), connect(2) and getsockname(2) where the socket's own address is
    /// needed; EIO and EOPNOTSUPP for a message that is several datagrams, or a part of one.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        message: &SendRequest<'_>,
        sending: &ConnectSettings,
        now: Duration,
        send: Send<'_>,
    ) -> Result<Option<usize>, Errno> {
        // Without a destination; the kernel reports it.
        let Some(to) = message.to.or_else(|| connected(socket)).filter(|to| sending.is_told(*to)) else {
            return Ok(None);
        };
        message.check()?;
        let header = || header(socket, to, sending, self.dialect);
        if !self.dialect.has_bare_datagrams() {
            return send_behind(&header()?, send).map(Some);
        }
        let flow = Flow::between(with_a_port(socket)?, to);
        self.send_in_flow(flow, now, header, send).map(Some)
    }

    fn send_in_flow(
        &self,
        flow: Flow,
        now: Duration,
        header: impl FnOnce() -> Result<OutgoingHeader, Errno>,
        send: Send<'_>,
    ) -> Result<usize, Errno> {
        if let Known::Since(before) = self.flows.knows(flow, now) {
            return send(&[], Own::Behind).inspect_err(|errno| match *errno {
                // ECONNREFUSED: no receiver had the previous datagram. A new receiver doesn't know the flow.
                Errno::CONNREFUSED => self.flows.forget(flow),
                _ => self.flows.take_back(flow, now, before),
            });
        }
        if self.dialect == Dialect::First {
            return header()
                .and_then(|header| send_behind(&header, send))
                .inspect_err(|_| self.flows.forget(flow));
        }
        let told = header().and_then(|header| send(header.bytes(), Own::Apart));
        told.inspect_err(|_| self.flows.forget(flow))?;
        match send(&[], Own::Behind) {
            // The error belongs to the header. The program gets the error of its own datagram at its next
            // call.
            Err(Errno::CONNREFUSED) => send(&[], Own::Behind),
            sent => sent,
        }
    }

    /// The kernel has reported that this connected socket's last datagram found no receiver (ECONNREFUSED). A
    /// new receiver doesn't know the flow, so the next datagram starts it again.
    pub fn on_refused(&self, socket: BorrowedFd<'_>) {
        if let (Some(to), Ok(own)) = (connected(socket), local(socket)) {
            self.flows.forget(Flow::between(own, to));
        }
    }

    /// Whether an answer from `from` starts with the header of this socket's datagrams.
    pub fn carries_ours(
        &self,
        socket: BorrowedFd<'_>,
        from: Option<SocketAddr>,
        start: &[u8],
        sending: &ConnectSettings,
    ) -> bool {
        let is_told = from.is_none_or(|from| sending.is_told(from));
        spp::decode(start).is_ok_and(|header| {
            is_told
                && match sending.from {
                    Some(from) => header.client == canonical(from),
                    None => local(socket).is_ok_and(|own| may_be(canonical(own), header.client)),
                }
        })
    }
}

/// The clock for the lifetime of flows. It continues while the machine sleeps, as the receiver's does.
pub fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// The length of the header that answers carry.
pub const CARRIED_BYTES: usize = spp::LEN;

/// A message to send, without its bytes.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// Where to; `None`: where the socket is connected.
    pub to: Option<SocketAddr>,
    /// Its control data (cmsg(3)).
    pub control: &'a [u8],
    /// send(2)'s flags.
    pub flags: i32,
}

impl SendRequest<'_> {
    fn check(&self) -> Result<(), Errno> {
        const MSG_MORE: i32 = 0x8000;
        if asks_for_segments(self.control) {
            return Err(Errno::IO);
        }
        if self.flags & MSG_MORE != 0 { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }
}

/// How many of the program's own bytes went.
fn send_behind(header: &OutgoingHeader, send: Send<'_>) -> Result<usize, Errno> {
    send(header.bytes(), Own::Behind).map(|sent| sent.saturating_sub(header.bytes().len()))
}

fn header(
    socket: BorrowedFd<'_>,
    to: SocketAddr,
    sending: &ConnectSettings,
    dialect: Dialect,
) -> Result<OutgoingHeader, Errno> {
    let own = match sending.from {
        Some(from) => from,
        None => own_address(socket, to)?,
    };
    let header = match dialect {
        Dialect::Spp => sending.simple_opening(own, to),
        _ => sending.opening(own, to, Transport::Dgram),
    };
    header.map_err(|_| Errno::INVAL)
}

fn own_address(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let mut own = with_a_port(socket)?;
    if own.ip().is_unspecified() {
        own.set_ip(towards(to)?.ip());
    }
    Ok(own)
}

fn with_a_port(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    let own = local(socket)?;
    if own.port() != 0 {
        return Ok(own);
    }
    match bind(socket, &own) {
        // Another thread has bound it first.
        Err(Errno::INVAL) => {
            local(socket).and_then(|own| if own.port() == 0 { Err(Errno::INVAL) } else { Ok(own) })
        }
        bound => bound.and_then(|()| local(socket)),
    }
}

/// Whether a socket bound to `own` (perhaps a wildcard) can have sent from `client`.
fn may_be(own: SocketAddr, client: SocketAddr) -> bool {
    own.port() == client.port() && (own.ip().is_unspecified() || own.ip() == client.ip())
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The address from which this machine sends to the destination.
fn towards(to: SocketAddr) -> Result<SocketAddr, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let probe = socket(family, SocketType::DGRAM, None)?;
    connect(&probe, &to)?;
    local(std::os::fd::AsFd::as_fd(&probe))
}

/// The address that a socket is connected to, if it is.
fn connected(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok())
}

fn local(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)
}

/// Whether control data (cmsg(3)) asks the kernel to split the message into several datagrams (UDP_SEGMENT):
/// only the first would have a header. On EIO programs send the datagrams one by one, as on devices without
/// support.
fn asks_for_segments(control: &[u8]) -> bool {
    const SOL_UDP: i32 = 17;
    const UDP_SEGMENT: i32 = 103;
    const HEADER: usize = 16;
    let mut rest = control;
    while let Some((length, level, kind)) = first_header(rest) {
        if (level, kind) == (SOL_UDP, UDP_SEGMENT) {
            return true;
        }
        rest = rest.get(length.max(HEADER).next_multiple_of(8)..).unwrap_or_default();
    }
    false
}

/// `struct cmsghdr` of a 64-bit machine: length, level, type.
fn first_header(bytes: &[u8]) -> Option<(usize, i32, i32)> {
    let length = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
    let level = i32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?);
    let kind = i32::from_ne_bytes(bytes.get(12..16)?.try_into().ok()?);
    Some((usize::try_from(length).unwrap_or(usize::MAX / 2).min(usize::MAX / 2), level, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let length = (16 + data.len() as u64).to_ne_bytes();
        let mut bytes = [&length[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn segments_are_found_wherever_they_are_asked_for() {
        let (tos, segments) = (control(0, 1, &[0; 4]), control(17, 103, &[0; 2]));
        assert!(!asks_for_segments(&[]) && !asks_for_segments(&tos) && !asks_for_segments(&segments[..15]));
        assert!(asks_for_segments(&segments) && asks_for_segments(&[tos, segments].concat()));
        // A length of 0, or a huge one, must not cause an endless loop.
        assert!(!asks_for_segments(&[0; 64]) && !asks_for_segments(&[0xFF; 64]));
    }
}
