//! Which sessions can leave user space: both connections must have agreed on the same things, or the peers
//! could not speak with each other.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use truepeer_bpf::{Side, Splices};
use truepeer_sys::repair::{Connection, connection};
use truepeer_sys::{CallError, socket};

use crate::sockets::Way;
use crate::{Grace, Sockets, StaysHere, Ways};

/// Begins to watch a session's connections: downstream, upstream.
///
/// # Errors
/// Why it stays in user space. Nothing has changed then.
pub fn arm(
    splices: &Arc<Splices>,
    grace: &Grace,
    ways: &Arc<Ways>,
    sockets: [BorrowedFd<'_>; 2],
) -> Result<Sockets, StaysHere> {
    let (down, up) = (side(sockets[0])?, side(sockets[1])?);
    let ends = [down.0.peer, down.0.own, up.0.own, up.0.peer];
    let losses = ways.may_offload(&ends)?;
    if down.0.own.is_ipv4() != up.0.own.is_ipv4() {
        return Err(StaysHere::Families);
    }
    fits([&down.1, &up.1], down.0.own.is_ipv4())?;
    let way = Way { ways: Arc::clone(ways), ends, losses };
    Ok(Sockets::new(splices.arm([down.0, up.0])?, grace.clone(), way))
}

/// Pure: whether what was agreed on the two connections is the same.
fn fits([down, up]: [&Connection; 2], is_ipv4: bool) -> Result<(), StaysHere> {
    let headers = if is_ipv4 { 40 } else { 60 };
    if !(down.is_established && up.is_established) {
        return Err(StaysHere::Ended);
    }
    if down.has_timestamps != up.has_timestamps {
        return Err(StaysHere::Timestamps);
    }
    if down.has_sack != up.has_sack {
        return Err(StaysHere::Sack);
    }
    // Accurate ECN counts the connection's own packets and bytes: no end could read the other's counters.
    if down.has_ecn != up.has_ecn || down.has_accurate_ecn || up.has_accurate_ecn {
        return Err(StaysHere::Ecn);
    }
    let is_too_long = |from: &Connection, to: &Connection| from.longest_in + headers > to.path_mtu;
    if is_too_long(down, up) || is_too_long(up, down) {
        return Err(StaysHere::SegmentSizes);
    }
    Ok(())
}

fn side(socket: BorrowedFd<'_>) -> Result<(Side<'_>, Connection), CallError> {
    let agreed = connection(socket)?;
    let peer = socket::peer_address(socket)?;
    let side = Side {
        socket,
        peer: canonical(peer),
        own: canonical(socket::local_address(socket)?),
        peer_scale: agreed.peer_scale,
        own_scale: agreed.own_scale,
        has_timestamps: agreed.has_timestamps,
    };
    Ok((side, agreed))
}

/// A socket of both families speaks IPv4 with `::ffff:a.b.c.d`.
fn canonical(address: std::net::SocketAddr) -> std::net::SocketAddr {
    std::net::SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIKE: Connection = Connection {
        is_established: true,
        has_timestamps: true,
        has_sack: true,
        has_ecn: false,
        has_accurate_ecn: false,
        peer_scale: 7,
        own_scale: 7,
        longest_in: 1460,
        path_mtu: 1500,
    };

    fn label(down: Connection, up: Connection) -> Option<&'static str> {
        let both_ways = [fits([&down, &up], true), fits([&up, &down], true)];
        let [one, other] = both_ways.map(|fits| fits.err().map(|stays| stays.reason().label()));
        assert_eq!(one, other);
        one
    }

    #[test]
    fn connections_that_differ_stay() {
        assert_eq!(label(ALIKE, Connection { peer_scale: 3, ..ALIKE }), None);
        assert_eq!(label(ALIKE, Connection { has_timestamps: false, ..ALIKE }), Some("timestamps"));
        assert_eq!(label(ALIKE, Connection { has_sack: false, ..ALIKE }), Some("sack"));
        assert_eq!(label(ALIKE, Connection { has_ecn: true, ..ALIKE }), Some("ecn"));
        let accurate = Connection { has_ecn: true, has_accurate_ecn: true, ..ALIKE };
        assert_eq!(label(accurate, Connection { has_ecn: true, ..ALIKE }), Some("ecn"));
        assert_eq!(label(accurate, accurate), Some("ecn"));
        assert_eq!(label(ALIKE, Connection { path_mtu: 1400, ..ALIKE }), Some("segment_sizes"));
        assert_eq!(
            label(ALIKE, Connection { longest_in: 65483, path_mtu: 65535, ..ALIKE }),
            Some("segment_sizes")
        );
        assert_eq!(label(ALIKE, Connection { is_established: false, ..ALIKE }), Some("ended"));
    }

    #[test]
    fn headers_of_ipv6_are_longer() {
        assert!(fits([&ALIKE, &ALIKE], false).is_err());
        let shorter = Connection { longest_in: 1440, ..ALIKE };
        assert!(fits([&shorter, &shorter], false).is_ok());
    }
}
