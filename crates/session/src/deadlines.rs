//! The deadlines of sessions, without a heap and without stale entries.
//!
//! There is a queue for each purpose and duration (for example a header, 5 s). All waits in a queue are
//! equally long, so it is sorted if new deadlines go to the back. The queues are doubly linked lists through
//! the entries of the [`Table`]. Starting, moving and cancelling a deadline takes O(1) and allocates nothing.

use std::time::{Duration, Instant};

use crate::table::{Key, Table};

/// A queue of [`Deadlines`].
pub type QueueId = u16;

/// An entry's place in at most one queue.
#[derive(Debug, Default)]
pub struct Link(Option<Queued>);

#[derive(Debug, Clone, Copy)]
struct Queued {
    queue: QueueId,
    at: Instant,
    previous: Option<u32>,
    next: Option<u32>,
}

impl Link {
    /// The deadline.
    #[must_use]
    pub fn at(&self) -> Option<Instant> {
        self.0.map(|queued| queued.at)
    }
}

/// An entry that has a [`Link`].
pub trait Linked {
    /// Its link.
    fn link(&mut self) -> &mut Link;
}

#[derive(Debug)]
struct Queue<P> {
    purpose: P,
    wait: Duration,
    first: Option<u32>,
    last: Option<u32>,
}

/// All queues of one worker; `P` is the type of the purposes.
#[derive(Debug)]
pub struct Deadlines<P>(Vec<Queue<P>>);

impl<P> Default for Deadlines<P> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<P: Copy + PartialEq> Deadlines<P> {
    /// Returns the queue for `purpose` and the duration `wait`. Creates it if it doesn't exist.
    ///
    /// # Panics
    /// With 2^16 different durations.
    pub fn queue(&mut self, purpose: P, wait: Duration) -> QueueId {
        let known = self.0.iter().position(|queue| (queue.purpose, queue.wait) == (purpose, wait));
        let place = known.unwrap_or_else(|| {
            self.0.push(Queue { purpose, wait, first: None, last: None });
            self.0.len() - 1
        });
        QueueId::try_from(place).expect("few durations for few purposes")
    }

    /// The duration of a queue's deadlines.
    #[must_use]
    pub fn wait(&self, queue: QueueId) -> Duration {
        self.0[usize::from(queue)].wait
    }

    /// (Re)starts the deadline of `key` in `queue`. An entry has at most one.
    pub fn start<T: Linked>(&mut self, table: &mut Table<T>, key: Key, queue: QueueId, now: Instant) {
        self.cancel(table, key);
        let list = &mut self.0[usize::from(queue)];
        let previous = list.last.replace(key.place());
        match previous {
            Some(place) => edit(table, place, |queued| queued.next = Some(key.place())),
            None => list.first = Some(key.place()),
        }
        if let Some(entry) = table.get_mut(key) {
            *entry.link() = Link(Some(Queued { queue, at: now + list.wait, previous, next: None }));
        }
    }

    /// Cancels the deadline of `key`, if it has one. Call it before removing the entry from the table:
    /// otherwise its neighbours keep links to it.
    pub fn cancel<T: Linked>(&mut self, table: &mut Table<T>, key: Key) {
        let Some(queued) = table.get_mut(key).and_then(|entry| entry.link().0.take()) else { return };
        let list = &mut self.0[usize::from(queued.queue)];
        match queued.previous {
            Some(place) => edit(table, place, |before| before.next = queued.next),
            None => list.first = queued.next,
        }
        match queued.next {
            Some(place) => edit(table, place, |after| after.previous = queued.previous),
            None => list.last = queued.previous,
        }
    }

    /// Removes one deadline that has passed, and returns its entry's key and its purpose.
    pub fn expire<T: Linked>(&mut self, table: &mut Table<T>, now: Instant) -> Option<(Key, P)> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let queue = (0..self.0.len()).find(|&queue| due(self.first_at(table, queue)))?;
        let key = table.key_at(self.0[queue].first?)?;
        self.cancel(table, key);
        Some((key, self.0[queue].purpose))
    }

    /// The entry with the earliest deadline, which stays.
    pub fn first<T: Linked>(&self, table: &mut Table<T>) -> Option<(Key, Instant)> {
        let queues = 0..self.0.len();
        let firsts = queues.filter_map(|queue| Some((queue, self.first_at(table, queue)?)));
        let (queue, at) = firsts.min_by_key(|(_, at)| *at)?;
        Some((table.key_at(self.0[queue].first?)?, at))
    }

    /// The earliest deadline.
    pub fn next<T: Linked>(&self, table: &mut Table<T>) -> Option<Instant> {
        (0..self.0.len()).filter_map(|queue| self.first_at(table, queue)).min()
    }

    fn first_at<T: Linked>(&self, table: &mut Table<T>, queue: usize) -> Option<Instant> {
        let entry = table.at_place(self.0[queue].first?)?;
        entry.link().0.map(|queued| queued.at)
    }
}

fn edit<T: Linked>(table: &mut Table<T>, place: u32, change: impl FnOnce(&mut Queued)) {
    if let Some(queued) = table.at_place(place).and_then(|entry| entry.link().0.as_mut()) {
        change(queued);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Entry(Link);

    impl Linked for Entry {
        fn link(&mut self) -> &mut Link {
            &mut self.0
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Purpose {
        Short,
        Long,
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn deadlines_expire_in_order_and_only_once() {
        let (mut table, mut deadlines, start) = (Table::new(), Deadlines::default(), Instant::now());
        let (short, long) =
            (deadlines.queue(Purpose::Short, SECOND), deadlines.queue(Purpose::Long, 3 * SECOND));
        let keys: Vec<_> = (0..4).map(|_| table.insert(Entry::default())).collect();
        deadlines.start(&mut table, keys[0], long, start);
        for &key in &keys[1..] {
            deadlines.start(&mut table, key, short, start);
        }
        deadlines.cancel(&mut table, keys[2]);
        assert_eq!(deadlines.next(&mut table), Some(start + SECOND));
        assert_eq!(deadlines.expire(&mut table, start), None);
        assert_eq!(deadlines.expire(&mut table, start + SECOND), Some((keys[1], Purpose::Short)));
        assert_eq!(deadlines.expire(&mut table, start + SECOND), Some((keys[3], Purpose::Short)));
        assert_eq!(deadlines.expire(&mut table, start + SECOND), None);
        assert_eq!(deadlines.next(&mut table), Some(start + 3 * SECOND));
        assert_eq!(deadlines.expire(&mut table, start + 9 * SECOND), Some((keys[0], Purpose::Long)));
        assert_eq!(deadlines.next(&mut table), None);
    }

    #[test]
    fn a_queue_is_of_a_purpose_and_a_duration() {
        let mut deadlines = Deadlines::default();
        let short = deadlines.queue(Purpose::Short, SECOND);
        assert_eq!(deadlines.queue(Purpose::Short, SECOND), short);
        assert_ne!(deadlines.queue(Purpose::Long, SECOND), short);
        assert_ne!(deadlines.queue(Purpose::Short, 2 * SECOND), short);
    }

    #[test]
    fn restarting_moves_to_the_back() {
        let (mut table, mut deadlines, start) = (Table::new(), Deadlines::default(), Instant::now());
        let queue = deadlines.queue(Purpose::Short, SECOND);
        let keys: Vec<_> = (0..3).map(|_| table.insert(Entry::default())).collect();
        for &key in &keys {
            deadlines.start(&mut table, key, queue, start);
        }
        deadlines.start(&mut table, keys[0], queue, start + SECOND / 2);
        let late = start + 2 * SECOND;
        let order: Vec<_> =
            std::iter::from_fn(|| deadlines.expire(&mut table, late)).map(|(key, _)| key).collect();
        assert_eq!(order, [keys[1], keys[2], keys[0]]);
    }

    /// Checked against plain lists.
    #[derive(Default)]
    struct Plain(Vec<(Key, QueueId, Instant)>);

    impl Plain {
        fn cancel(&mut self, key: Key) {
            self.0.retain(|(other, ..)| *other != key);
        }

        fn expire(&mut self, now: Instant) -> Option<(Key, QueueId)> {
            let due = self.0.iter().enumerate().filter(|(_, (_, _, at))| *at <= now);
            let (place, _) = due.min_by_key(|(place, (_, queue, _))| (*queue, *place))?;
            let (key, queue, _) = self.0.remove(place);
            Some((key, queue))
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Insert,
        Start { entry: usize, queue: usize },
        Cancel { entry: usize },
        Remove { entry: usize },
        Wait { millis: u64 },
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            2 => Just(Act::Insert),
            6 => (any::<usize>(), 0..3_usize).prop_map(|(entry, queue)| Act::Start { entry, queue }),
            1 => any::<usize>().prop_map(|entry| Act::Cancel { entry }),
            1 => any::<usize>().prop_map(|entry| Act::Remove { entry }),
            2 => (0..30_u64).prop_map(|millis| Act::Wait { millis }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn they_behave_like_plain_lists(acts in prop::collection::vec(act(), 0..200)) {
            let waits = [20, 0, 50].map(Duration::from_millis);
            let mut deadlines = Deadlines::<QueueId>::default();
            let (mut table, mut plain) = (Table::new(), Plain::default());
            // One queue for each of three purposes, however often it is requested.
            let mut all = || (0..).zip(waits).map(|(purpose, wait)| deadlines.queue(purpose, wait)).collect();
            let (queues, again): (Vec<QueueId>, Vec<QueueId>) = (all(), all());
            prop_assert_eq!(&queues, &again);
            let (mut keys, mut now) = (Vec::new(), Instant::now());
            for act in acts {
                let key = |entry: usize| (!keys.is_empty()).then(|| entry % keys.len());
                match act {
                    Act::Insert => keys.push(table.insert(Entry::default())),
                    Act::Start { entry, queue } => if let Some(at) = key(entry) {
                        deadlines.start(&mut table, keys[at], queues[queue], now);
                        plain.cancel(keys[at]);
                        plain.0.push((keys[at], queues[queue], now + waits[queue]));
                    },
                    Act::Cancel { entry } => if let Some(at) = key(entry) {
                        deadlines.cancel(&mut table, keys[at]);
                        plain.cancel(keys[at]);
                    },
                    Act::Remove { entry } => if let Some(at) = key(entry) {
                        let gone = keys.swap_remove(at);
                        deadlines.cancel(&mut table, gone);
                        plain.cancel(gone);
                        prop_assert!(table.remove(gone).is_some());
                    },
                    Act::Wait { millis } => {
                        now += Duration::from_millis(millis);
                        prop_assert_eq!(deadlines.next(&mut table), plain.0.iter().map(|(.., at)| *at).min());
                        loop {
                            let expired = deadlines.expire(&mut table, now);
                            prop_assert_eq!(expired, plain.expire(now));
                            if expired.is_none() {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
}
