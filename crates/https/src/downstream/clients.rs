//! The number of connections of each client, and its limit.
//!
//! One address must not be able to use up the resources of all. A client with IPv6 usually has a whole /64
//! network and can take any address in it, so the network counts as one client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Several locks, so that workers rarely wait for each other.
const SHARDS: usize = 16;

/// The open connections by client, in all workers together.
#[derive(Debug, Default)]
pub struct ClientConnections([Mutex<HashMap<u64, usize>>; SHARDS]);

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
            Entry::Occupied(open) if *open.get() >= most => return None,
            Entry::Occupied(open) => *open.into_mut() += 1,
            Entry::Vacant(_) if most == 0 => return None,
            Entry::Vacant(none) => _ = none.insert(1),
        }
        Some(Counted { all: Arc::clone(self), client })
    }

    fn shard(&self, client: u64) -> MutexGuard<'_, HashMap<u64, usize>> {
        let [.., last] = client.to_be_bytes();
        self.0[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut shard = self.all.shard(self.client);
        if let Entry::Occupied(mut open) = shard.entry(self.client) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
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
    match client {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, ..] = ip.octets();
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn clients_without_connections_take_no_memory() {
        let all = Arc::new(ClientConnections::default());
        let crowd: Vec<_> =
            (0..10_000_u32).map(|client| all.count(IpAddr::V4(client.into()), 1).unwrap()).collect();
        drop(crowd);
        assert!(all.0.iter().all(|shard| shard.lock().unwrap().capacity() == 0));
    }
}
