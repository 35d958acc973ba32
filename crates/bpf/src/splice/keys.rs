//! A hash table from a connection's addresses to its place (`c/offload/key_table.h`). The programs change it
//! at the same time.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aya::Pod;
use aya::maps::{Array, Map, MapData};

use super::layout::words;
use super::mapped::{Mapped, Shared};
use crate::layout::FlowKey;
use crate::{AttachError, Place};

/// `SLOT_BITS`: a place and a side.
const SLOT_BITS: u32 = 17;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// `struct key_bucket`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bucket {
    slots: [AtomicU32; 16],
}

// SAFETY: 16 atomics of 4 bytes each; any bytes are valid, and 64 is a multiple of 8.
unsafe impl Shared for Bucket {}

/// `struct key_secret`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Secret {
    words: [u64; 10],
    last_bucket: u32,
    unused: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64 && size_of::<Secret>() == 88);

// SAFETY: repr(C) of ten words and two halves of one: no padding, and every bit pattern is valid.
unsafe impl Pod for Secret {}

/// Why a key was not entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotEntered {
    /// Another connection has it.
    Taken,
    /// No slot is free where it belongs.
    NoRoom,
}

/// The number of buckets for the keys of so many flows: a quarter of the slots is in use at most.
pub(crate) fn buckets_for(flows: u32) -> u32 {
    flows.div_ceil(2).next_power_of_two()
}

/// The keys of spliced flows.
pub(crate) struct Keys {
    buckets: Mapped<Bucket>,
    secrets: Mutex<Array<MapData, Secret>>,
    secret: OnceLock<Secret>,
}

impl Keys {
    /// The pinned tables.
    pub(crate) fn open(place: &Place) -> Result<Self, AttachError> {
        const SECRET: &str = "ts_secret";
        let buckets = Mapped::open(place, "ts_keys")?;
        let secret =
            MapData::from_pin(place.maps().join(SECRET)).map_err(AttachError::map("opening", SECRET))?;
        let secrets = Map::Array(secret).try_into().map_err(AttachError::map("opening", SECRET))?;
        Ok(Self { buckets, secrets: Mutex::new(secrets), secret: OnceLock::new() })
    }

    /// Makes the secret of new tables: from then on keys can be entered. Only the owner of the tables may
    /// call this.
    pub(crate) fn begin(&self) -> Result<(), AttachError> {
        if self.secret().is_some() {
            return Ok(());
        }
        let random = RandomState::new();
        let secret = Secret {
            // SipHash with keys from the operating system: nobody can guess its results.
            words: std::array::from_fn(|place| random.hash_one(place)),
            last_bucket: self.buckets.count() - 1,
            unused: 0,
        };
        self.secrets().set(0, secret, 0).map_err(AttachError::map("writing", "ts_secret"))
    }

    fn secrets(&self) -> MutexGuard<'_, Array<MapData, Secret>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn secret(&self) -> Option<&Secret> {
        if self.secret.get().is_none() {
            // Without a secret no flow has begun.
            let secret = self.secrets().get(&0, 0).ok().filter(|secret| secret.words != [0; 10])?;
            let _ = self.secret.set(secret);
        }
        self.secret.get()
    }

    fn place_of(&self, key: &FlowKey) -> Option<(&Bucket, u32)> {
        let secret = self.secret()?;
        let hash = hash(secret, key);
        Some((self.buckets.at(hash & secret.last_bucket), hash))
    }

    /// The bits that were entered for this key. `key_at`: the key of the connection with given bits.
    pub(crate) fn find(&self, key: &FlowKey, key_at: impl Fn(u32) -> FlowKey) -> Option<u32> {
        let (bucket, hash) = self.place_of(key)?;
        find(bucket, hash, key, &key_at, 0)
    }

    /// Enters the key with these bits; `key_at(bits)` must be the key already. If two threads enter one key
    /// at once, both may fail.
    pub(crate) fn enter(
        &self,
        key: &FlowKey,
        bits: u32,
        key_at: impl Fn(u32) -> FlowKey,
    ) -> Result<(), NotEntered> {
        let (bucket, hash) = self.place_of(key).ok_or(NotEntered::NoRoom)?;
        enter(bucket, hash, key, &key_at, bits)
    }

    /// Removes the key if it still leads to `bits`.
    pub(crate) fn remove(&self, key: &FlowKey, bits: u32) {
        if let Some((bucket, hash)) = self.place_of(key) {
            free(bucket, slot_of(hash, bits));
        }
    }

    /// How many there are, for tests.
    pub(crate) fn count(&self) -> usize {
        let is_used = |slot: &&AtomicU32| slot.load(Ordering::Acquire) != 0;
        let in_use = |place| self.buckets.at(place).slots.iter().filter(is_used).count();
        (0..self.buckets.count()).map(in_use).sum()
    }
}

fn hash(secret: &Secret, key: &FlowKey) -> u32 {
    let products = words(key).into_iter().zip(secret.words).map(|(word, by)| by.wrapping_mul(word.into()));
    let sum = products.fold(secret.words[9], u64::wrapping_add);
    u32::try_from(sum >> 32).unwrap_or_default()
}

/// Never 0.
fn slot_of(hash: u32, bits: u32) -> u32 {
    (hash | 1 << SLOT_BITS) & !SLOT_MASK | bits
}

fn find(
    bucket: &Bucket,
    hash: u32,
    key: &FlowKey,
    key_at: &impl Fn(u32) -> FlowKey,
    own: u32,
) -> Option<u32> {
    let want = slot_of(hash, 0);
    let mut slots = bucket.slots.iter().map(|slot| slot.load(Ordering::SeqCst));
    let is_it =
        |slot: &u32| (slot ^ want) >> SLOT_BITS == 0 && *slot != own && key_at(slot & SLOT_MASK) == *key;
    slots.find(is_it).map(|slot| slot & SLOT_MASK)
}

fn enter(
    bucket: &Bucket,
    hash: u32,
    key: &FlowKey,
    key_at: &impl Fn(u32) -> FlowKey,
    bits: u32,
) -> Result<(), NotEntered> {
    let own = slot_of(hash, bits);
    // SeqCst: with Acquire and Release the look-up below could pass the store, and of two that enter the same
    // key neither would see the other.
    let take = |slot: &AtomicU32| slot.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if !bucket.slots.iter().any(take) {
        return Err(NotEntered::NoRoom);
    }
    // Look for the key only after storing the slot. Of two that enter the same key at once, at least one sees
    // the other.
    if find(bucket, hash, key, key_at, own).is_none() {
        return Ok(());
    }
    free(bucket, own);
    Err(NotEntered::Taken)
}

fn free(bucket: &Bucket, own: u32) {
    for slot in &bucket.slots {
        // Err: another key has this slot.
        let _ = slot.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::splice::layout::key_of;

    const SECRET: Secret = Secret {
        words: [3 << 40, 5 << 41, 7 << 42, 11 << 43, 13 << 44, 17, 19, 23, 29, 31],
        last_bucket: 0,
        unused: 0,
    };

    fn empty() -> Bucket {
        Bucket { slots: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// The key of the connection with these bits.
    fn key(bits: u32) -> FlowKey {
        let port = 1000 + u16::try_from(bits).unwrap();
        key_of(([192, 0, 2, 1], port).into(), ([192, 0, 2, 2], 80).into())
    }

    fn enter_here(bucket: &Bucket, bits: u32) -> Result<(), NotEntered> {
        enter(bucket, hash(&SECRET, &key(bits)), &key(bits), &key, bits)
    }

    fn find_here(bucket: &Bucket, bits: u32) -> Option<u32> {
        find(bucket, hash(&SECRET, &key(bits)), &key(bits), &key, 0)
    }

    #[test]
    fn a_key_leads_where_it_was_entered_until_it_is_freed() {
        let bucket = empty();
        assert!((0..16).all(|bits| enter_here(&bucket, bits) == Ok(())));
        assert_eq!(enter_here(&bucket, 16), Err(NotEntered::NoRoom));
        assert!((0..16).all(|bits| find_here(&bucket, bits) == Some(bits)));
        free(&bucket, slot_of(hash(&SECRET, &key(7)), 7));
        assert_eq!((find_here(&bucket, 7), find_here(&bucket, 8)), (None, Some(8)));
        assert_eq!(enter_here(&bucket, 16), Ok(()));
    }

    #[test]
    fn a_key_that_another_connection_has_is_refused() {
        let bucket = empty();
        assert_eq!(enter_here(&bucket, 1), Ok(()));
        let (same, hash) = (key(1), hash(&SECRET, &key(1)));
        assert_eq!(enter(&bucket, hash, &same, &|_| same, 2), Err(NotEntered::Taken));
        assert_eq!(find(&bucket, hash, &same, &|_| same, 0), Some(1));
    }

    #[test]
    fn of_two_that_come_at_once_one_has_the_key_at_most() {
        let (bucket, same, hash) = (empty(), key(1), hash(&SECRET, &key(1)));
        for _ in 0..1000 {
            let try_it = |bits| enter(&bucket, hash, &same, &|_| same, bits).is_ok();
            let entered = thread::scope(|scope| {
                let other = scope.spawn(|| try_it(2));
                [try_it(1), other.join().unwrap()]
            });
            assert_ne!(entered, [true, true]);
            (1..3).for_each(|bits| free(&bucket, slot_of(hash, bits)));
        }
    }
}
