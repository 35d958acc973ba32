//! Remembers which datagram flows have started. The receiver of `first` and `standalone` identifies a flow by
//! the sender's address, and takes a second header for data.
//!
//! The table needs no lock. It is in memory that forked children share, because two processes may send from
//! one socket.

use core::hash::{Hash, Hasher};
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::hash::DefaultHasher;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use truepeer_policy::Dialect;

/// A flow is searched for in this many neighbouring slots. If all are used, it replaces the one that has been
/// silent longest.
const WAYS: usize = 8;
const SETS: usize = 8192;
/// How long receivers remember a silent flow.
const LIFE: Duration = Dialect::First.default_silence();
const BYTES: usize = WAYS * SETS * size_of::<Slot>();

/// A flow and the time it last sent: the upper half of its hash, and milliseconds of the caller's clock,
/// which wrap around after 49 days. 0: no flow. Both are in one word, so that a reader never sees one flow
/// with the time of another.
type Slot = AtomicU64;

/// The flows of a program and its forked children. Owns its mapping, [`BYTES`] long, until dropped.
#[derive(Debug)]
pub(crate) struct Flows {
    start: *const Slot,
}

// SAFETY: the mapping holds atomic integers only, which any thread may use; `start` never changes.
unsafe impl Send for Flows {}
// SAFETY: the mapping holds atomic integers only, which several threads may use at once; `start` never
// changes.
unsafe impl Sync for Flows {}

/// A flow as the receiver identifies it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow(u64);

impl Flow {
    fn at(self, now: u32) -> u64 {
        (self.0 & !u64::from(u32::MAX)) | u64::from(now)
    }

    /// Receivers ignore the flow label and the scope of an IPv6 address.
    pub(crate) fn between(own: SocketAddr, to: SocketAddr) -> Self {
        let mut hasher = DefaultHasher::new();
        (own.ip(), own.port(), to.ip(), to.port()).hash(&mut hasher);
        Self(hasher.finish() | 1 << 32)
    }
}

/// Whether the receiver knows a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It doesn't, or no longer does.
    Nothing,
    /// It does. The value is the flow's previous time, see [`Flows::take_back`].
    Since(u64),
}

impl Flows {
    /// Creates an empty table. Unused pages take no memory.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Miri has no shared mappings, and no fork(2).
        let shared = if cfg!(miri) { MapFlags::PRIVATE } else { MapFlags::SHARED };
        // SAFETY: mmap(2) without MAP_FIXED creates a new mapping at a free address, so no existing memory is
        // affected.
        let start = unsafe { mmap_anonymous(null_mut(), BYTES, protection, shared) }?;
        Ok(Self { start: start.cast_const().cast() })
    }

    /// Returns whether the receiver knows this flow, and marks it as started. If unknown, the caller must
    /// send a header. Call it for each datagram: a flow's lifetime counts from its last datagram.
    pub(crate) fn knows(&self, flow: Flow, now: Duration) -> Known {
        let (set, now) = (self.set(flow), milliseconds(now));
        // More attempts than other threads can make fail.
        for _ in 0..4 * WAYS {
            // Read once: threads that begin the same flow choose the same slot, and one of them fails. If the
            // slots were read again for the oldest, a thread could miss the flow that another one
            // has just put there, and choose another slot.
            let seen: [u64; WAYS] = std::array::from_fn(|at| set[at].load(Relaxed));
            let known = seen.iter().position(|slot| is_of(flow, *slot));
            let oldest = || (0..WAYS).max_by_key(|at| silence(seen[*at], now));
            let Some(at) = known.or_else(oldest) else { break };
            let (slot, before) = (&set[at], seen[at]);
            if slot.compare_exchange(before, flow.at(now), Relaxed, Relaxed).is_ok() {
                let lives = is_of(flow, before) && u128::from(silence(before, now)) < LIFE.as_millis();
                return if lives { Known::Since(before) } else { Known::Nothing };
            }
        }
        Known::Nothing
    }

    /// The datagram of `now` was not sent, so the receiver last heard of the flow at `before`.
    pub(crate) fn take_back(&self, flow: Flow, now: Duration, before: u64) {
        for slot in self.set(flow) {
            let _ = slot.compare_exchange(flow.at(milliseconds(now)), before, Relaxed, Relaxed);
        }
    }

    /// The header was not sent, so the receiver doesn't know the flow.
    pub(crate) fn forget(&self, flow: Flow) {
        for slot in self.set(flow) {
            let before = slot.load(Relaxed);
            if is_of(flow, before) {
                let _ = slot.compare_exchange(before, 0, Relaxed, Relaxed);
            }
        }
    }

    fn set(&self, flow: Flow) -> &[Slot] {
        // Less than SETS, so it fits.
        let number = usize::try_from(flow.0 % SETS as u64).unwrap_or_default();
        // SAFETY: SETS times WAYS slots are mapped for the life of `self`, page-aligned; any bit pattern is a
        // valid atomic integer, and all is written through atomics, here as in other processes.
        unsafe { core::slice::from_raw_parts(self.start.add(number * WAYS), WAYS) }
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        // SAFETY: these are the mapping's, and references into it can't outlive `self`.
        let _ = unsafe { munmap(self.start.cast_mut().cast(), BYTES) };
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the clock wraps around, as documented")]
fn milliseconds(now: Duration) -> u32 {
    now.as_millis() as u32
}

fn is_of(flow: Flow, slot: u64) -> bool {
    slot != 0 && slot >> 32 == flow.0 >> 32
}

/// How many milliseconds a thread's `now` may be behind another's.
const MOMENTS: u32 = 60_000;

/// How many milliseconds a slot has been silent; a free slot counts as silent forever.
#[allow(clippy::cast_possible_truncation, reason = "only the lower half is wanted")]
fn silence(slot: u64, now: u32) -> u32 {
    match now.wrapping_sub(slot as u32) {
        _ if slot == 0 => u32::MAX,
        // Another thread has read a slightly later time.
        negative if negative > u32::MAX - MOMENTS => 0,
        silence => silence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(number: u16) -> Flow {
        let own = SocketAddr::from(([127, 0, 0, 1], number));
        Flow::between(own, SocketAddr::from(([127, 0, 0, 1], 53)))
    }

    fn begins(flows: &Flows, flow: Flow, now: Duration) -> bool {
        flows.knows(flow, now) == Known::Nothing
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    #[test]
    fn a_flow_begins_once_and_again_after_a_silence() {
        let flows = Flows::new().unwrap();
        assert!(begins(&flows, flow(1), at(0)) && begins(&flows, flow(2), at(0)));
        // It lives as long as it sends.
        assert!([1, 28, 55, 82].into_iter().all(|second| !begins(&flows, flow(1), at(second))));
        assert!(begins(&flows, flow(2), at(28)) && begins(&flows, flow(1), at(110)));
        assert!(!begins(&flows, flow(1), at(111)));
    }

    #[test]
    fn a_flow_whose_header_was_lost_begins_again() {
        let flows = Flows::new().unwrap();
        assert!(begins(&flows, flow(1), at(0)));
        flows.forget(flow(1));
        flows.forget(flow(2));
        assert!(begins(&flows, flow(1), at(0)) && !begins(&flows, flow(1), at(0)));
    }

    #[test]
    fn unsent_datagrams_keep_no_flow_alive() {
        let flows = Flows::new().unwrap();
        assert!(begins(&flows, flow(1), at(0)));
        let Known::Since(before) = flows.knows(flow(1), at(20)) else { panic!("it lives") };
        flows.take_back(flow(1), at(20), before);
        assert!(begins(&flows, flow(1), at(30)));
    }

    #[test]
    fn a_silence_of_weeks_is_a_silence() {
        let flows = Flows::new().unwrap();
        assert!(begins(&flows, flow(1), at(0)) && begins(&flows, flow(1), at(30 * 24 * 3600)));
    }

    #[test]
    fn a_flow_is_its_addresses_and_ports() {
        let to = |label| {
            SocketAddr::V6(core::net::SocketAddrV6::new(core::net::Ipv6Addr::LOCALHOST, 53, label, 0))
        };
        let own = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(Flow::between(own, to(0)).0, Flow::between(own, to(5)).0);
    }

    #[test]
    fn a_full_table_forgets_the_flow_that_was_silent_longest() {
        let flows = Flows::new().unwrap();
        let all = 0..=u16::MAX;
        assert!(all.clone().all(|number| begins(&flows, flow(number), at(0))));
        let known = all.filter(|number| !begins(&flows, flow(*number), at(1))).count();
        assert!(known > 40_000, "{known}");
        // The newest flow stays, even in a full set.
        assert!(!begins(&flows, flow(u16::MAX), at(2)));
    }

    #[test]
    fn one_of_many_threads_begins_a_flow() {
        let flows = Flows::new().unwrap();
        for number in 0..200 {
            let begun = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| begins(&flows, flow(number), at(0)))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&it| it).count()
            });
            assert_eq!(begun, 1);
        }
    }
}
