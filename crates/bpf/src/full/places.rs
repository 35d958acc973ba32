//! Places in the table of flows that are lent to the programs: a ring (`struct full_places`).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::splice::mapped::{Mapped, Shared};
use crate::{AttachError, Place};

const SLOTS: u32 = 16384;

/// `struct full_places`.
#[repr(C)]
struct Slots {
    begin: AtomicU32,
    unused: [AtomicU32; 15],
    end: AtomicU32,
    unused_too: [AtomicU32; 15],
    places: [AtomicU32; SLOTS as usize],
}

const _: () = assert!(size_of::<Slots>() == 128 + 4 * SLOTS as usize);

// SAFETY: it consists of atomics of 4 bytes, so any bytes are valid; their number is even, so the size is a
// multiple of 8.
unsafe impl Shared for Slots {}

/// The mapped ring. Only this process puts places into it; the programs take them.
pub(crate) struct LentPlaces {
    slots: Mapped<Slots>,
    /// [`LentPlaces::taken`] has returned the places before this number.
    seen: u32,
}

impl LentPlaces {
    pub(crate) fn open(place: &Place) -> Result<Self, AttachError> {
        let slots: Mapped<Slots> = Mapped::open(place, "tf_places")?;
        let seen = slots.at(0).begin.load(Ordering::Acquire);
        Ok(Self { slots, seen })
    }

    fn slots(&self) -> &Slots {
        self.slots.at(0)
    }

    fn slot(&self, number: u32) -> &AtomicU32 {
        &self.slots().places[(number % SLOTS) as usize]
    }

    /// How many the programs may still take.
    pub(crate) fn count(&self) -> u32 {
        self.slots().end.load(Ordering::Relaxed).wrapping_sub(self.slots().begin.load(Ordering::Acquire))
    }

    /// False: the ring is full.
    pub(crate) fn lend(&mut self, place: u32) -> bool {
        let end = self.slots().end.load(Ordering::Relaxed);
        // `taken` still has to read the places from `seen` on, so they must not be overwritten.
        if end.wrapping_sub(self.seen) >= SLOTS {
            return false;
        }
        self.slot(end).store(place, Ordering::Relaxed);
        self.slots().end.store(end.wrapping_add(1), Ordering::Release);
        true
    }

    /// The places that the programs have taken since the last call.
    pub(crate) fn taken(&mut self) -> Vec<u32> {
        let begin = self.slots().begin.load(Ordering::Acquire);
        self.taken_up_to(begin)
    }

    fn taken_up_to(&mut self, begin: u32) -> Vec<u32> {
        let new = begin.wrapping_sub(self.seen).min(SLOTS);
        let places = (0..new).map(|n| self.slot(self.seen.wrapping_add(n)).load(Ordering::Relaxed)).collect();
        self.seen = begin;
        places
    }

    /// Takes back all places that the programs have not taken. Returns those that they have taken since the
    /// last [`Self::taken`].
    pub(crate) fn take_back(&mut self) -> Vec<u32> {
        let end = self.slots().end.load(Ordering::Relaxed);
        let mut begin = self.slots().begin.load(Ordering::Acquire);
        while let Err(now) =
            self.slots().begin.compare_exchange(begin, end, Ordering::AcqRel, Ordering::Acquire)
        {
            begin = now;
        }
        let taken = self.taken_up_to(begin);
        self.seen = end;
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn ring(begin: u32) -> LentPlaces {
        let memory = File::from(memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(size_of::<Slots>() as u64).unwrap();
        let slots = Mapped::<Slots>::map(memory, 1).unwrap();
        slots.at(0).begin.store(begin, Ordering::Relaxed);
        slots.at(0).end.store(begin, Ordering::Relaxed);
        LentPlaces { slots, seen: begin }
    }

    /// Takes a place as the programs do.
    fn take(ring: &LentPlaces) -> u32 {
        let number = ring.slots().begin.fetch_add(1, Ordering::AcqRel);
        ring.slot(number).load(Ordering::Relaxed)
    }

    #[test]
    fn places_are_told_once_in_the_order_in_which_they_were_taken() {
        let mut ring = ring(u32::MAX - 1000);
        for round in 0..10 {
            let places: Vec<u32> = (round * 1000..round * 1000 + 1000).collect();
            assert!(places.iter().all(|place| ring.lend(*place)));
            assert_eq!(ring.count(), 1000);
            assert!(places.iter().all(|place| take(&ring) == *place));
            assert_eq!(ring.taken(), places);
            assert_eq!((ring.count(), ring.taken()), (0, vec![]));
        }
    }

    #[test]
    fn what_was_not_told_yet_is_not_overwritten() {
        let mut ring = ring(0);
        assert!((0..SLOTS).all(|place| ring.lend(place)));
        assert_eq!(take(&ring), 0);
        assert!(!ring.lend(7));
        assert_eq!(ring.taken(), [0]);
        assert!(ring.lend(7));
    }

    #[test]
    fn of_those_that_are_taken_back_none_is_told() {
        let mut ring = ring(0);
        assert!((0..10).all(|place| ring.lend(place)));
        assert_eq!((take(&ring), take(&ring)), (0, 1));
        assert_eq!(ring.take_back(), [0, 1]);
        assert_eq!((ring.count(), ring.take_back(), ring.taken()), (0, vec![], vec![]));
    }
}
