//! The sending side of datagrams: a header in front of each one (the dialect `every`), whichever call sends it.

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_protocol, socket_type};
use rustix::net::{AddressFamily, SocketType, bind, connect, getpeername, getsockname, ipproto, socket};
use truepeer_proto::Transport;

use crate::{Opening, Sending};

/// Whether it is a UDP socket; there are others that send datagrams (ping).
pub fn sends_datagrams(socket: BorrowedFd<'_>) -> bool {
    socket_type(socket) == Ok(SocketType::DGRAM)
        && matches!(socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
        && socket_protocol(socket) == Ok(Some(ipproto::UDP))
}

/// What goes before a datagram from this UDP socket: to `to`, or to where it is connected. `None` if it goes as it is.
///
/// A socket that has no port yet is given one, as the kernel is about to do.
///
/// # Errors
/// What bind(2), connect(2) and getsockname(2) say, where the header names the socket's own address.
pub fn header_of_datagram(
    socket: BorrowedFd<'_>,
    to: Option<SocketAddr>,
    sending: &Sending,
) -> Result<Option<Opening>, Errno> {
    let connected = || getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    // Sent nowhere, as the kernel will say.
    let Some(to) = to.or_else(connected) else { return Ok(None) };
    if !sending.is_told(to) {
        return Ok(None);
    }
    let own = match sending.from {
        Some(from) => from,
        None => own_address(socket, to)?,
    };
    sending.opening(own, to, Transport::Dgram).map(Some).map_err(|_| Errno::INVAL)
}

fn own_address(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let mut own = local(socket)?;
    if own.port() == 0 {
        bind(socket, &own)?;
        own = local(socket)?;
    }
    if own.ip().is_unspecified() {
        own.set_ip(towards(to)?.ip());
    }
    Ok(own)
}

/// The address that this machine sends from.
fn towards(to: SocketAddr) -> Result<SocketAddr, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let probe = socket(family, SocketType::DGRAM, None)?;
    connect(&probe, &to)?;
    local(std::os::fd::AsFd::as_fd(&probe))
}

fn local(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)
}

/// Whether control data (cmsg(3)) asks the kernel to cut what is sent into several datagrams (UDP_SEGMENT): only the first
/// would have a header. Programs that hear EIO send them one by one, as on network devices that can't do it.
pub fn asks_for_segments(control: &[u8]) -> bool {
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
        // A length of nothing, or of everything, is not followed for ever.
        assert!(!asks_for_segments(&[0; 64]) && !asks_for_segments(&[0xFF; 64]));
    }
}
