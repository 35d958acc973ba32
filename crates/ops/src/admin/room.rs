//! Places for connections. Each kind of peer has places of its own. If they are all taken, a new connection
//! is accepted all the same, and one of the peer with most connections is closed: the one with the first
//! deadline. So nobody waits for a place that another peer has.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::process::geteuid;
use truepeer_sys::socket::peer_user;

use super::stream::Stream;

/// Who holds a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// By the unix socket: root, or this process's own user.
    Operator,
    /// By the unix socket: another user.
    User(u32),
    /// By TCP: a host, for IPv6 its /64.
    Host(IpAddr),
}

impl Holder {
    /// `None`: the connection is lost already.
    pub(super) fn of(stream: &Stream) -> Option<Self> {
        match stream {
            Stream::Tcp(stream) => Some(Self::Host(prefix(stream.peer_addr().ok()?.ip().to_canonical()))),
            Stream::Unix(stream) => {
                let user = peer_user(stream.as_fd()).ok()?;
                let is_operator = user == 0 || user == geteuid().as_raw();
                Some(if is_operator { Self::Operator } else { Self::User(user) })
            }
        }
    }

    /// How many connections of its kind there may be.
    fn room(self) -> usize {
        match self {
            Self::Operator => 8,
            Self::User(_) => 16,
            Self::Host(_) => 32,
        }
    }

    fn is_same_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The connection that makes way for a new one of `newcomer`, by its place in `open`. `None`: there is room.
pub(super) fn makes_way(
    newcomer: Holder,
    open: impl Iterator<Item = (Holder, Instant)> + Clone,
) -> Option<usize> {
    let kind = open.enumerate().filter(|(_, (holder, _))| holder.is_same_kind(newcomer));
    if kind.clone().count() < newcomer.room() {
        return None;
    }
    let held = |holder| kind.clone().filter(|(_, (other, _))| *other == holder).count();
    // A request has a deadline from its connection on, an answer one that each write renews, and an order a
    // late one. So a peer that sends its request slowly, or takes no answer, goes first.
    let first =
        kind.clone().max_by_key(|(_, (holder, deadline))| (held(*holder), std::cmp::Reverse(*deadline)));
    first.map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_holds_most_makes_way_and_only_for_their_own_kind() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut open: Vec<_> = (0..15).map(|n| (Holder::User(1), at(10 + n))).collect();
        open.push((Holder::User(2), at(1)));
        open.extend((0..7).map(|n| (Holder::Operator, at(n))));
        let choose = |newcomer, open: &[_]| makes_way(newcomer, open.iter().copied());
        assert_eq!(choose(Holder::Operator, &open), None);
        assert_eq!(choose(Holder::Host([127, 0, 0, 1].into()), &open), None);
        for newcomer in [Holder::User(1), Holder::User(2), Holder::User(3)] {
            assert_eq!(choose(newcomer, &open), Some(0), "the first deadline of the user who holds 15");
        }
        open.push((Holder::Operator, at(100)));
        assert_eq!(choose(Holder::Operator, &open), Some(16));
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one_holder() {
        let [a, b] = ["2001:db8::1", "2001:db8::ffff:2"].map(|text| prefix(text.parse().unwrap()));
        assert_eq!(a, b);
        assert_ne!(a, prefix("2001:db8:0:1::1".parse().unwrap()));
    }
}
