//! The number of connections of each client, and its limit.
//!
//! One address must not be able to use up the resources of all. A client with IPv6 usually has a whole /64
//! network and can take any address in it, so the network counts as one client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use truepeer_policy::{HeaderRule, Origin, PrefixSet, Route, without_nat64};

use crate::allowance::Budget;

/// Several locks, so that workers rarely wait for each other.
const SHARDS: usize = 16;

/// The open connections by client, in all workers together.
#[derive(Debug, Default)]
pub struct ClientConnections([Mutex<HashMap<u64, Open>>; SHARDS]);

/// A client's open connections, and the budget that their streams share.
#[derive(Debug)]
struct Open {
    connections: usize,
    /// The further streams of its HTTP/2 connections; made for the first of these connections.
    streams: Option<Budget>,
}

/// Counts as a connection of its client until it is dropped.
#[derive(Debug)]
pub struct Counted {
    all: Arc<ClientConnections>,
    client: u64,
}

impl ClientConnections {
    /// Counts one more connection of `client`. `None`: it has `most` already.
    #[must_use]
    pub fn count(self: &Arc<Self>, client: IpAddr, most: usize) -> Option<Counted> {
        let client = as_one(client);
        match self.shard(client).entry(client) {
            Entry::Occupied(open) if open.get().connections >= most => return None,
            Entry::Occupied(open) => open.into_mut().connections += 1,
            Entry::Vacant(_) if most == 0 => return None,
            Entry::Vacant(none) => _ = none.insert(Open { connections: 1, streams: None }),
        }
        Some(Counted { all: Arc::clone(self), client })
    }

    fn shard(&self, client: u64) -> MutexGuard<'_, HashMap<u64, Open>> {
        let [.., last] = client.to_be_bytes();
        self.0[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// The budget of `most` streams that all HTTP/2 connections of this client share.
    fn streams(&self, most: usize) -> Budget {
        let mut shard = self.all.shard(self.client);
        let Some(open) = shard.get_mut(&self.client) else { return Budget::new(most) };
        let streams = open.streams.get_or_insert_with(|| Budget::new(most));
        // A reload may have changed it.
        streams.set_limit(most);
        streams.clone()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut shard = self.all.shard(self.client);
        if let Entry::Occupied(mut open) = shard.entry(self.client) {
            open.get_mut().connections -= 1;
            if open.get().connections == 0 {
                open.remove();
            }
        }
        // Free the memory when many clients have left.
        if shard.is_empty() {
            *shard = HashMap::new();
        }
    }
}

/// The number that stands for `client`: an IPv6 address's first 64 bits, or an IPv4 address behind 32 zeros.
/// No IPv6 network begins so: ::/8 is reserved. A number is shorter than an address, and each connection
/// keeps one.
fn as_one(client: IpAddr) -> u64 {
    // One /64 has the clients of all IPv4 behind NAT64.
    match without_nat64(client) {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, ..] = ip.octets();
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        }
    }
}

/// A client has reached its limit of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{client} has {most} connections open, as many as one client may have")]
pub struct TooMany {
    /// The client.
    pub client: IpAddr,
    /// The limit.
    pub most: usize,
}

/// The limit of connections for one client.
#[derive(Debug, Clone, Default)]
pub struct PerClient {
    /// `None`: an eighth of all sessions, 64 to 4096; 0: any number.
    pub most: Option<usize>,
    /// Addresses that many clients share, such as a proxy's. They are not limited.
    pub shared: PrefixSet,
}

impl PerClient {
    /// Any number.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { most: Some(0), shared: PrefixSet::new() }
    }

    /// Counts one more connection of the client of `route` in `all`, of at most `sessions`. `None`: it is not
    /// limited.
    pub(crate) fn count(
        &self,
        all: &Arc<ClientConnections>,
        sessions: usize,
        route: &Route,
        rule: HeaderRule,
    ) -> Result<Option<Counted>, TooMany> {
        let most = self.most(sessions);
        if most == 0 || !self.counts(route, rule) {
            return Ok(None);
        }
        let client = route.client.ip();
        all.count(client, most).map(Some).ok_or(TooMany { client, most })
    }

    /// The streams that the client may have open beside the first one of each of its HTTP/2 connections: each
    /// takes one of all `sessions`, too. A lower limit of connections does not make them fewer.
    #[must_use]
    pub fn streams(&self, counted: &Counted, sessions: usize) -> Budget {
        counted.streams(self.most(sessions).max(share(sessions)))
    }

    fn most(&self, sessions: usize) -> usize {
        self.most.unwrap_or_else(|| share(sessions))
    }

    /// Whether the client of `route` is identified individually.
    ///
    /// A sender that may name clients but has not (LOCAL, UNKNOWN, an optional header) stands for many
    /// clients, or connects for its own health checks. The same holds for a program on this machine, such
    /// as another proxy or an ssh tunnel.
    fn counts(&self, route: &Route, rule: HeaderRule) -> bool {
        let client = route.client.ip();
        let is_one = match route.origin {
            Origin::Header => true,
            Origin::NoHeader => rule == HeaderRule::Forbid && !client.is_loopback(),
            Origin::Local | Origin::Unknown => false,
        };
        is_one && !self.shared.contains(client)
    }
}

/// An eighth of all sessions, so that a few clients can't use them up, and at least as many as some browsers
/// behind one address open.
fn share(sessions: usize) -> usize {
    (sessions / 8).clamp(64, 4096)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use truepeer_policy::{BackendAddr, ClientAddr, OnConflict};

    use super::*;

    fn open(all: &Arc<ClientConnections>, client: &str) -> Option<Counted> {
        all.count(client.parse().unwrap(), 2)
    }

    #[test]
    fn a_client_at_its_limit_may_connect_again_when_a_connection_ends() {
        let all = Arc::new(ClientConnections::default());
        let (first, _second) = (open(&all, "192.0.2.1").unwrap(), open(&all, "192.0.2.1").unwrap());
        assert!(open(&all, "192.0.2.1").is_none());
        let _other = open(&all, "192.0.2.17").expect("another client of the same shard");
        drop(first);
        let _third = open(&all, "192.0.2.1").expect("one has ended");
        assert!(open(&all, "192.0.2.1").is_none());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let all = Arc::new(ClientConnections::default());
        let _open = [open(&all, "2001:db8:0:1::1").unwrap(), open(&all, "2001:db8:0:1:ffff::2").unwrap()];
        assert!(open(&all, "2001:db8:0:1:a::").is_none());
        assert!(open(&all, "2001:db8:0:2::1").is_some());
    }

    #[test]
    fn clients_behind_nat64_are_many() {
        let all = Arc::new(ClientConnections::default());
        let _open = [open(&all, "64:ff9b::192.0.2.1").unwrap(), open(&all, "192.0.2.1").unwrap()];
        assert!(open(&all, "64:ff9b::192.0.2.1").is_none());
        assert!(open(&all, "64:ff9b::192.0.2.2").is_some());
    }

    #[test]
    fn clients_without_connections_take_no_memory() {
        let all = Arc::new(ClientConnections::default());
        let crowd: Vec<_> =
            (0..10_000_u32).map(|client| all.count(IpAddr::V4(client.into()), 1).unwrap()).collect();
        drop(crowd);
        assert!(all.0.iter().all(|shard| shard.lock().unwrap().capacity() == 0));
    }

    #[test]
    fn all_connections_of_a_client_share_its_streams() {
        let (all, limit) = (Arc::new(ClientConnections::default()), PerClient::default());
        let (first, second) = (open(&all, "192.0.2.1").unwrap(), open(&all, "192.0.2.1").unwrap());
        let other = open(&all, "192.0.2.2").unwrap();
        let streams = limit.streams(&first, 1600);
        let held = streams.take(200).expect("an eighth");
        assert!(limit.streams(&second, 1600).take(1).is_none());
        assert!(limit.streams(&other, 1600).take(200).is_some());
        drop(held);
        assert!(limit.streams(&second, 1600).take(1).is_some());
        // As many for a client that may have few connections.
        let few = PerClient { most: Some(2), ..PerClient::default() };
        assert_eq!(few.streams(&first, 1600).limit(), 200);
    }

    fn route(client: &str, origin: Origin) -> Route {
        Route {
            client: ClientAddr::new(SocketAddr::new(client.parse().unwrap(), 5000)),
            origin,
            backend: BackendAddr::new("192.0.2.1:80".parse().unwrap()),
            source: None,
            on_conflict: OnConflict::Ephemeral,
            send_proxy: None,
            destination: None,
            special: None,
        }
    }

    #[test]
    fn clients_are_counted_only_where_they_are_identified() {
        let per_client = PerClient { most: None, shared: "10.0.0.0/8".parse().unwrap() };
        for (client, origin, rule, counts) in [
            ("203.0.113.7", Origin::NoHeader, HeaderRule::Forbid, true),
            ("203.0.113.7", Origin::Header, HeaderRule::Require, true),
            ("127.0.0.2", Origin::Header, HeaderRule::Require, true),
            // A sender that may name clients but has named none.
            ("203.0.113.7", Origin::NoHeader, HeaderRule::Optional, false),
            ("203.0.113.7", Origin::Local, HeaderRule::Require, false),
            ("203.0.113.7", Origin::Unknown, HeaderRule::Require, false),
            // Another proxy: on this machine, or trusted to name its clients in each request.
            ("127.0.0.1", Origin::NoHeader, HeaderRule::Forbid, false),
            ("::1", Origin::NoHeader, HeaderRule::Forbid, false),
            ("10.1.2.3", Origin::NoHeader, HeaderRule::Forbid, false),
            ("10.1.2.3", Origin::Header, HeaderRule::Require, false),
        ] {
            assert_eq!(
                per_client.counts(&route(client, origin), rule),
                counts,
                "{client} {origin:?} {rule:?}"
            );
        }
    }
}
