//! The flows of one worker: found by client, or by the sender's address where datagrams are bare. Their
//! number is limited, and silent ones are forgotten.
//!
//! Pure: no sockets and no clock. The caller defines the contents of a flow.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use truepeer_session::ListenerId;
use truepeer_session::deadlines::{Deadlines, Link, Linked, QueueId};
use truepeer_session::table::{Key, Table};

/// The identity of a flow: client, destination, and listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UdpFlowKey {
    pub(crate) listener: ListenerId,
    pub(crate) client: SocketAddr,
    /// The header's destination; without one, the address to which the datagram was sent.
    pub(crate) destination: Option<SocketAddr>,
}

/// How a sender's bare datagrams are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SenderKey {
    pub(crate) listener: ListenerId,
    pub(crate) sender: SocketAddr,
    /// The local address: TPROXY brings datagrams for many.
    pub(crate) local: Option<SocketAddr>,
}

#[derive(Debug)]
struct Entry<F> {
    flow: F,
    key: UdpFlowKey,
    sender: Option<SenderKey>,
    silence: QueueId,
    link: Link,
}

impl<F> Linked for Entry<F> {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// The flows of one worker.
#[derive(Debug)]
pub(crate) struct FlowTable<F> {
    flows: Table<Entry<F>>,
    by_client: HashMap<UdpFlowKey, Key>,
    by_sender: HashMap<SenderKey, Key>,
    deadlines: Deadlines<()>,
}

impl<F> Default for FlowTable<F> {
    fn default() -> Self {
        Self {
            flows: Table::new(),
            by_client: HashMap::new(),
            by_sender: HashMap::new(),
            deadlines: Deadlines::default(),
        }
    }
}

impl<F> FlowTable<F> {
    /// Whether there are no flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The flow of a client.
    pub(crate) fn of_client(&self, key: &UdpFlowKey) -> Option<Key> {
        self.by_client.get(key).copied()
    }

    /// The flow of a sender's bare datagrams.
    pub(crate) fn of_sender(&self, key: &SenderKey) -> Option<Key> {
        self.by_sender.get(key).copied()
    }

    /// How many places the table has, used or not.
    pub(crate) fn places(&self) -> u32 {
        self.flows.places()
    }

    /// The flows at places `from` (included) to `to` (excluded).
    pub(crate) fn between(&self, from: u32, to: u32) -> impl Iterator<Item = (Key, &F)> {
        self.flows.between(from, to).map(|(key, entry)| (key, &entry.flow))
    }

    pub(crate) fn get(&self, key: Key) -> Option<&F> {
        self.flows.get(key).map(|entry| &entry.flow)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut F> {
        self.flows.get_mut(key).map(|entry| &mut entry.flow)
    }

    /// The keys of all flows.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.flows.keys()
    }

    /// The keys of a listener's flows.
    pub(crate) fn keys_of(&self, listener: ListenerId) -> Vec<Key> {
        self.by_client.iter().filter(|(key, _)| key.listener == listener).map(|(_, &key)| key).collect()
    }

    /// The identity of a flow, the sender whose bare datagrams belong to it, and how long it has been silent.
    pub(crate) fn identity(
        &mut self,
        key: Key,
        now: Instant,
    ) -> Option<(UdpFlowKey, Option<SenderKey>, Duration)> {
        let entry = self.flows.get_mut(key)?;
        let left = entry.link.at().map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let silent_for = self.deadlines.wait(entry.silence).saturating_sub(left);
        Some((entry.key, entry.sender, silent_for))
    }

    /// Adds a flow at `now`, which is forgotten after `silence`.
    pub(crate) fn insert(&mut self, key: UdpFlowKey, flow: F, silence: Duration, now: Instant) -> Key {
        let silence = self.deadlines.queue((), silence);
        let place = self.flows.insert(Entry { flow, key, sender: None, silence, link: Link::default() });
        self.by_client.insert(key, place);
        self.touch(place, now);
        place
    }

    /// Assigns the bare datagrams of `sender` to this flow. Those of its earlier sender no longer belong to
    /// it, because that port may soon be another client's.
    pub(crate) fn name_sender(&mut self, key: Key, sender: SenderKey) {
        let Some(entry) = self.flows.get_mut(key) else { return };
        if entry.sender == Some(sender) {
            return;
        }
        if let Some(earlier) = entry.sender.replace(sender) {
            self.unname(&earlier, key);
        }
        self.by_sender.insert(sender, key);
    }

    fn unname(&mut self, sender: &SenderKey, key: Key) {
        // Unless that sender has named another flow since.
        if self.by_sender.get(sender) == Some(&key) {
            self.by_sender.remove(sender);
        }
    }

    /// Restarts the flow's silence.
    pub(crate) fn touch(&mut self, key: Key, now: Instant) {
        let Some(entry) = self.flows.get_mut(key) else { return };
        let queue = entry.silence;
        self.deadlines.start(&mut self.flows, key, queue, now);
    }

    /// The flow whose silence ends first, and when.
    pub(crate) fn first(&mut self) -> Option<(Key, Instant)> {
        self.deadlines.first(&mut self.flows)
    }

    /// Removes the flow whose silence would end first.
    pub(crate) fn evict(&mut self) -> Option<Gone<F>> {
        let (first, _) = self.first()?;
        self.remove(first)
    }

    /// Removes one flow of a listener.
    pub(crate) fn take_of(&mut self, listener: ListenerId) -> Option<Gone<F>> {
        let key = self.by_client.iter().find(|(key, _)| key.listener == listener).map(|(_, &key)| key)?;
        self.remove(key)
    }

    /// When the next flow will have been silent for too long.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.deadlines.next(&mut self.flows)
    }

    /// Removes a flow.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Gone<F>> {
        let ends_at = self.flows.get_mut(key)?.link.at();
        self.deadlines.cancel(&mut self.flows, key);
        let entry = self.flows.remove(key)?;
        self.by_client.remove(&entry.key);
        if let Some(sender) = &entry.sender {
            self.unname(sender, key);
        }
        let heard = ends_at.and_then(|at| at.checked_sub(self.deadlines.wait(entry.silence)));
        Some(Gone { flow: entry.flow, sender: entry.sender, heard })
    }
}

/// A flow that was removed.
#[derive(Debug)]
pub(crate) struct Gone<F> {
    pub(crate) flow: F,
    pub(crate) sender: Option<SenderKey>,
    /// When its silence began.
    pub(crate) heard: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);

    fn client(port: u16) -> UdpFlowKey {
        UdpFlowKey {
            listener: ListenerId::new(0),
            client: SocketAddr::from(([192, 0, 2, 1], port)),
            destination: None,
        }
    }

    fn sender(port: u16) -> SenderKey {
        SenderKey {
            listener: ListenerId::new(0),
            sender: SocketAddr::from(([10, 0, 0, 1], port)),
            local: None,
        }
    }

    fn expire<F>(table: &mut FlowTable<F>, now: Instant) -> Option<Gone<F>> {
        let (first, _) = table.first().filter(|(_, at)| *at <= now)?;
        table.remove(first)
    }

    #[test]
    fn a_silent_flow_is_forgotten_under_all_its_names() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let one = table.insert(client(1), "one", SILENCE, start);
        table.name_sender(one, sender(7));
        let two = table.insert(client(2), "two", SILENCE, start);
        table.touch(one, start + SILENCE / 2);
        assert_eq!(expire(&mut table, start + SILENCE).map(|gone| gone.flow), Some("two"));
        assert_eq!(table.of_client(&client(2)), None);
        assert_eq!(table.get_mut(two), None);
        assert!(expire(&mut table, start + SILENCE).is_none());
        let gone = expire(&mut table, start + 2 * SILENCE).expect("the other");
        assert_eq!((gone.flow, gone.sender), ("one", Some(sender(7))));
        assert_eq!(gone.heard, Some(start + SILENCE / 2));
        assert_eq!(table.of_sender(&sender(7)), None);
        assert_eq!(table.of_client(&client(1)), None);
    }

    #[test]
    fn a_sender_port_used_again_belongs_to_its_newest_flow() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let one = table.insert(client(1), "one", SILENCE, start);
        table.name_sender(one, sender(7));
        table.name_sender(one, sender(8));
        assert_eq!(table.of_sender(&sender(7)), None);
        let two = table.insert(client(2), "two", SILENCE, start);
        table.name_sender(two, sender(8));
        assert_eq!(table.of_sender(&sender(8)), Some(two));
        table.name_sender(one, sender(9));
        assert_eq!(table.of_sender(&sender(8)), Some(two));
    }

    #[test]
    fn the_longest_silent_flow_is_evicted() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        for port in 1..=3 {
            table.insert(client(port), port, SILENCE, start);
        }
        let one = table.of_client(&client(1)).expect("still there");
        table.touch(one, start + Duration::from_secs(1));
        assert_eq!(table.evict().map(|gone| gone.flow), Some(2));
        assert_eq!(table.evict().map(|gone| gone.flow), Some(3));
        assert_eq!(table.evict().map(|gone| gone.flow), Some(1));
        assert!(table.evict().is_none());
    }
}
