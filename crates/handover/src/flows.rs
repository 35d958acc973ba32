//! Which flows of datagrams have begun: the receiver of `first` and `standalone` knows a flow by the sender's address, and
//! takes a second header for data.
//!
//! Kept without a lock, in memory that forked children share: two processes may send from one socket.

use core::hash::{Hash, Hasher};
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::hash::DefaultHasher;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use truepeer_policy::Dialect;

/// Flows are looked for among so many neighbours, of which the one that has been silent longest makes room.
const WAYS: usize = 8;
const SETS: usize = 8192;
/// As long as receivers remember a flow that sends nothing.
const LIFE: Duration = Dialect::First.default_silence();
const BYTES: usize = WAYS * SETS * size_of::<Slot>();

/// A flow and when it last sent something: the upper half of its hash, and milliseconds of the caller's clock, which begin
/// again after 49 days. 0: no flow. One number, so that nobody finds one flow with another's time.
type Slot = AtomicU64;

/// The flows of a program and of the children that it forks. Owns its mapping, [`BYTES`] long, until dropped.
#[derive(Debug)]
pub(crate) struct Flows {
    start: *const Slot,
}

// SAFETY: the mapping holds atomic integers only, which any thread may use; `start` never changes.
unsafe impl Send for Flows {}
// SAFETY: the mapping holds atomic integers only, which several threads may use at once; `start` never changes.
unsafe impl Sync for Flows {}

/// A flow, as the receiver knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow(u64);

impl Flow {
    fn at(self, now: u32) -> u64 {
        (self.0 & !u64::from(u32::MAX)) | u64::from(now)
    }

    /// What else a socket address of IPv6 holds (a flow label, a device) is not what receivers tell flows apart by.
    pub(crate) fn between(own: SocketAddr, to: SocketAddr) -> Self {
        let mut hasher = DefaultHasher::new();
        (own.ip(), own.port(), to.ip(), to.port()).hash(&mut hasher);
        Self(hasher.finish() | 1 << 32)
    }
}

/// What a receiver knows of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing, or nothing any more.
    Nothing,
    /// All; this was noted when it last heard of it, see [`Flows::take_back`].
    Since(u64),
}

impl Flows {
    /// None yet. Pages that are not used are not there.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nobody.
        let start = unsafe { mmap_anonymous(null_mut(), BYTES, protection, MapFlags::SHARED) }?;
        Ok(Self { start: start.cast_const().cast() })
    }

    /// What the receiver knows of this flow; if nothing, it is the caller who has to tell it. To be asked for each datagram:
    /// a flow's life is counted from its last one.
    pub(crate) fn knows(&self, flow: Flow, now: Duration) -> Known {
        let (set, now) = (self.set(flow), milliseconds(now));
        // As often as others may be quicker, and more.
        for _ in 0..4 * WAYS {
            let known = set.iter().find(|slot| is_of(flow, slot.load(Relaxed)));
            let oldest = || set.iter().max_by_key(|slot| silence(slot.load(Relaxed), now));
            let Some(slot) = known.or_else(oldest) else { break };
            let before = slot.load(Relaxed);
            if slot.compare_exchange(before, flow.at(now), Relaxed, Relaxed).is_ok() {
                let lives = is_of(flow, before) && u128::from(silence(before, now)) < LIFE.as_millis();
                return if lives { Known::Since(before) } else { Known::Nothing };
            }
        }
        Known::Nothing
    }

    /// The datagram of `now` was not sent: the receiver has heard nothing since `before`.
    pub(crate) fn take_back(&self, flow: Flow, now: Duration, before: u64) {
        for slot in self.set(flow) {
            let _ = slot.compare_exchange(flow.at(milliseconds(now)), before, Relaxed, Relaxed);
        }
    }

    /// The receiver hasn't got the header.
    pub(crate) fn forget(&self, flow: Flow) {
        for slot in self.set(flow) {
            let before = slot.load(Relaxed);
            if is_of(flow, before) {
                let _ = slot.compare_exchange(before, 0, Relaxed, Relaxed);
            }
        }
    }

    fn set(&self, flow: Flow) -> &[Slot] {
        // Less than SETS, which fits.
        let number = usize::try_from(flow.0 % SETS as u64).unwrap_or_default();
        // SAFETY: SETS times WAYS slots are mapped for the life of `self`, page-aligned; any bit pattern is a valid atomic
        // integer, and all is written through atomics, here as in other processes.
        unsafe { core::slice::from_raw_parts(self.start.add(number * WAYS), WAYS) }
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        // SAFETY: these are the mapping's, and references into it can't outlive `self`.
        let _ = unsafe { munmap(self.start.cast_mut().cast(), BYTES) };
    }
}

#[allow(clippy::cast_possible_truncation, reason = "it begins again, as said")]
fn milliseconds(now: Duration) -> u32 {
    now.as_millis() as u32
}

fn is_of(flow: Flow, slot: u64) -> bool {
    slot != 0 && slot >> 32 == flow.0 >> 32
}

/// Milliseconds by which a thread may be late with what its clock said.
const MOMENTS: u32 = 60_000;

/// For how many milliseconds; a place that is free has been silent for ever.
#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is meant")]
fn silence(slot: u64, now: u32) -> u32 {
    match now.wrapping_sub(slot as u32) {
        _ if slot == 0 => u32::MAX,
        // Another thread has looked at its clock after us, hardly more than moments.
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
    fn what_was_not_sent_keeps_no_flow_alive() {
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
    fn a_full_table_forgets_who_has_been_silent_longest() {
        let flows = Flows::new().unwrap();
        let all = 0..=u16::MAX;
        assert!(all.clone().all(|number| begins(&flows, flow(number), at(0))));
        let known = all.filter(|number| !begins(&flows, flow(*number), at(1))).count();
        assert!(known > 40_000, "{known}");
        // In a set of its own kind of crowd, the newest stays.
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
