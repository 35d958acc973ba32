//! truepeer lends places to the programs; they come back as flows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Full, Lending, Lent};
use crate::splice::{Stage, addresses_of, boot_ns};
use crate::{AttachError, Watched};

/// The most sessions that may begin between two looks ([`Full::begun`]).
const LENT: u32 = 8192;

/// If no flow stands at a taken place after so long, none will: another session had the addresses.
const UNUSED: Duration = Duration::from_secs(2);

/// A session that the kernel has made.
#[derive(Debug)]
pub struct Begun {
    /// The number of its listener ([`Full::serve`]).
    pub listener: u16,
    /// Whether its header was of version 1.
    pub by_v1: bool,
    /// The sender's address.
    pub sender: SocketAddr,
    /// The address that the sender connected to.
    pub listens: SocketAddr,
    /// The client that the header names.
    pub client: SocketAddr,
    /// The backend's address.
    pub backend: SocketAddr,
    /// Its flow. Dropping this doesn't end it.
    pub watched: Watched,
}

/// The same clock as bpf_ktime_get_ns().
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Full {
    /// The sessions that have begun since the last call. Lends as many places anew. Call it several times a
    /// second: after two seconds without a call the programs stop answering senders.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn begun(&self) -> Result<Vec<Begun>, AttachError> {
        if !self.take_over()? {
            return Ok(Vec::new());
        }
        let places = {
            let mut lent = self.lent();
            let Lent { ring, taken, state, .. } = &mut *lent;
            let now = Instant::now();
            taken.extend(ring.taken().into_iter().map(|place| (place, now)));
            let Settled { used, unused } =
                settle(taken, now, |place| self.splices.stage(place) != Stage::Free);
            // The places of another process are not this one's to give back.
            let are_own = *state == Lending::Goes;
            unused.into_iter().filter(|_| are_own).for_each(|place| self.splices.give_back(place));
            used
        };
        let begun = places.into_iter().map(|place| self.at(place)).collect();
        self.lend()?;
        Ok(begun)
    }

    fn at(&self, place: u32) -> Begun {
        let flow = self.splices.at(place);
        const BY_V1: u32 = 0x1_0000;
        flow.since_ns.store(boot_ns(Duration::ZERO), Ordering::Relaxed);
        let listener = flow.listener.load(Ordering::Relaxed);
        let [down, up] = flow.faces.each_ref().map(|face| addresses_of(&face.key()));
        Begun {
            listener: u16::try_from(listener & !BY_V1).unwrap_or(u16::MAX),
            by_v1: listener & BY_V1 != 0,
            sender: down.0,
            listens: down.1,
            client: up.1,
            backend: up.0,
            watched: Watched::new(Arc::clone(&self.splices), place),
        }
    }

    /// Takes back the lent places, so that another process may have the tables. The programs stay attached:
    /// for two minutes they hand over to truepeer's listener the senders whose SYN they have answered. The
    /// next process that starts removes them. [`Full::begun`] still returns the sessions that they have
    /// begun.
    pub fn release(&self) {
        let mut lent = self.lent();
        if lent.state == Lending::Goes {
            let (taken, now) = (lent.ring.take_back(), Instant::now());
            lent.taken.extend(taken.into_iter().map(|place| (place, now)));
        }
        lent.state = Lending::IsOver;
    }

    pub(super) fn lend(&self) -> Result<(), AttachError> {
        let mut lent = self.lent();
        if lent.state != Lending::Goes {
            return Ok(());
        }
        let now = monotonic_ns();
        lent.looked.set(0, now, 0).map_err(AttachError::map("writing", "tf_looked"))?;
        while lent.ring.count() < LENT {
            let Some(place) = self.splices.take_place() else { break };
            if !lent.ring.lend(place) {
                self.splices.give_back(place);
                break;
            }
        }
        Ok(())
    }
}

/// Places that programs have taken: with a session, and given up without one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settled {
    used: Vec<u32>,
    unused: Vec<u32>,
}

/// A place that was taken less than [`UNUSED`] ago may still get its session: it stays in `taken`.
fn settle(taken: &mut Vec<(u32, Instant)>, now: Instant, is_used: impl Fn(u32) -> bool) -> Settled {
    let mut settled = Settled::default();
    taken.retain(|&(place, since)| {
        let list = if is_used(place) {
            &mut settled.used
        } else if now.saturating_duration_since(since) >= UNUSED {
            &mut settled.unused
        } else {
            return true;
        };
        list.push(place);
        false
    });
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_used_late_is_found_then() {
        let now = Instant::now();
        let mut taken: Vec<_> = (0..300).map(|place| (place, now)).collect();
        let settled = settle(&mut taken, now, |place| place != 7 && place != 8);
        assert_eq!(settled, Settled { used: (0..7).chain(9..300).collect(), unused: vec![] });
        let settled = settle(&mut taken, now + UNUSED / 2, |place| place == 8);
        assert_eq!(settled, Settled { used: vec![8], unused: vec![] });
    }

    #[test]
    fn a_place_that_is_not_used_is_given_back_after_some_seconds() {
        let now = Instant::now();
        let mut taken = vec![(7, now), (8, now + Duration::from_secs(1))];
        assert_eq!(settle(&mut taken, now + UNUSED, |_| false), Settled { used: vec![], unused: vec![7] });
        assert_eq!(taken, [(8, now + Duration::from_secs(1))]);
    }
}
