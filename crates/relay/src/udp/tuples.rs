//! The client addresses in use towards each backend, by all workers together.
//!
//! The kernel lets any number of UDP sockets have one tuple and delivers the backend's datagrams to the
//! newest only. A client that sent to two addresses of its load balancer has two flows but one backend: the
//! second flow must not take the first one's replies. Only a flow's own successor may have its tuple: the
//! same client and destination, where the sender continues on another listener, or from another port that
//! belongs to another worker (if only the first datagram has a header).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::table::UdpFlowKey;

/// The tuples in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tuples(Arc<Mutex<HashMap<(SocketAddr, SocketAddr), Owner>>>);

#[derive(Debug)]
struct Owner {
    client: SocketAddr,
    destination: Option<SocketAddr>,
    /// The flow and its successors.
    sockets: usize,
}

/// A tuple in use; dropping it releases it.
#[derive(Debug)]
pub(crate) struct UpstreamTuple {
    tuples: Tuples,
    tuple: (SocketAddr, SocketAddr),
}

impl Tuples {
    /// Takes the tuple of a flow's source address and its backend's for `flow`, unless another flow has it.
    pub(crate) fn take(
        &self,
        flow: &UdpFlowKey,
        source: SocketAddr,
        backend: SocketAddr,
    ) -> Option<UpstreamTuple> {
        let tuple = (source, backend);
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(tuple) {
            Entry::Vacant(vacant) => {
                vacant.insert(Owner { client: flow.client, destination: flow.destination, sockets: 1 });
            }
            Entry::Occupied(owner) if owner.get().is_of(flow) => owner.into_mut().sockets += 1,
            Entry::Occupied(_) => return None,
        }
        Some(UpstreamTuple { tuples: self.clone(), tuple })
    }
}

impl UpstreamTuple {
    /// Whether a successor has it, too.
    pub(crate) fn is_shared(&self) -> bool {
        let tuples = self.tuples.0.lock().unwrap_or_else(PoisonError::into_inner);
        tuples.get(&self.tuple).is_some_and(|owner| owner.sockets > 1)
    }
}

impl Owner {
    fn is_of(&self, flow: &UdpFlowKey) -> bool {
        (self.client, self.destination) == (flow.client, flow.destination)
    }
}

impl Drop for UpstreamTuple {
    fn drop(&mut self) {
        let mut tuples = self.tuples.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut owner) = tuples.entry(self.tuple) {
            owner.get_mut().sockets -= 1;
            if owner.get().sockets == 0 {
                owner.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_has_one_owner_until_it_is_given_back() {
        let tuples = Tuples::default();
        let [client, other, backend] = [1, 2, 3].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let flow = |destination| UdpFlowKey {
            listener: truepeer_session::ListenerId::new(0),
            client,
            destination: Some(destination),
        };
        let first = tuples.take(&flow(backend), client, backend).expect("it is free");
        assert!(tuples.take(&flow(other), client, backend).is_none());
        assert!(tuples.take(&flow(other), client, other).is_some());
        let successor = tuples.take(&flow(backend), client, backend).expect("the same flow");
        assert!(first.is_shared() && successor.is_shared());
        drop(first);
        assert!(!successor.is_shared());
        assert!(tuples.take(&flow(other), client, backend).is_none());
        drop(successor);
        assert!(tuples.take(&flow(other), client, backend).is_some());
    }
}
