//! Sessions by key: a slab whose keys become invalid when the entry is removed, even if its index is reused.
//!
//! epoll may report events for descriptors that an earlier event of the same batch has closed. The generation
//! in the key distinguishes them from those of the session that reuses the index.

/// The key of an entry: 30 bits of index, 32 bits of generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    place: u32,
    generation: u32,
}

impl Key {
    /// The key of an index and a generation.
    #[must_use]
    pub const fn new(place: u32, generation: u32) -> Self {
        Self { place, generation }
    }

    /// How often the index was used before, modulo 2^32.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// As a number below 2^62. epoll's user data needs the other two bits for the kind of source.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.place) << 32 | u64::from(self.generation)
    }

    /// The inverse of [`Key::to_bits`].
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are separated")]
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self { place: (bits >> 32) as u32, generation: bits as u32 }
    }

    /// The index, which a later entry may reuse.
    #[must_use]
    pub fn place(self) -> u32 {
        self.place
    }
}

const MOST_PLACES: u32 = 1 << 30;

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    tenant: Option<T>,
}

/// The slab.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// With 2^30 entries, which no limit of descriptors allows.
    pub fn insert(&mut self, tenant: T) -> Key {
        let place = self.vacant.pop().unwrap_or_else(|| self.build_place());
        let slot = &mut self.places[place as usize];
        slot.tenant = Some(tenant);
        Key { place, generation: slot.generation }
    }

    fn build_place(&mut self) -> u32 {
        let place = u32::try_from(self.places.len()).ok().filter(|&place| place < MOST_PLACES);
        self.places.push(Place { generation: 0, tenant: None });
        place.expect("descriptors run out long before indices")
    }

    /// The entry, if it has not been removed.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.places.get(key.place as usize)?;
        if slot.generation == key.generation { slot.tenant.as_ref() } else { None }
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.places.get_mut(key.place as usize)?;
        if slot.generation == key.generation { slot.tenant.as_mut() } else { None }
    }

    /// The entry at an index that is known to be used: a neighbour in a queue of deadlines.
    pub fn at_place(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.tenant.as_mut()
    }

    /// The key of the entry now at this index.
    #[must_use]
    pub fn key_at(&self, place: u32) -> Option<Key> {
        let slot = self.places.get(place as usize)?;
        slot.tenant.is_some().then_some(Key { place, generation: slot.generation })
    }

    /// How many places there are, used or not.
    #[must_use]
    pub fn places(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    /// The entries at places `from` (included) to `to` (excluded).
    pub fn between(&self, from: u32, to: u32) -> impl Iterator<Item = (Key, &T)> {
        let places = self.places.get(from as usize..to.min(self.places()) as usize).unwrap_or_default();
        (from..).zip(places).filter_map(|(place, slot)| {
            Some((Key { place, generation: slot.generation }, slot.tenant.as_ref()?))
        })
    }

    /// The keys of all entries.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        (0..)
            .map_while(|place| self.places.get(place as usize).map(|_| place))
            .filter_map(|place| self.key_at(place))
            .collect()
    }

    /// Removes the entry. Its key becomes invalid.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        let slot = &mut self.places[key.place as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(key.place);
        slot.tenant.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_invalid_once_its_entry_is_removed() {
        let mut table = Table::new();
        let first = table.insert("first");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(second.place(), first.place());
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(second), Some(&mut "second"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_number_leaves_two_bits_free() {
        let last = Key { place: MOST_PLACES - 1, generation: u32::MAX };
        assert_eq!(last.to_bits() >> 62, 0);
        assert_eq!(Key::from_bits(last.to_bits()), last);
    }

    #[test]
    fn generations_begin_anew_after_the_last() {
        let mut table = Table::new();
        let first = table.insert("first");
        table.remove(first);
        table.places[0].generation = u32::MAX;
        let last = table.insert("last");
        assert_eq!(table.remove(last), Some("last"));
        assert_eq!(table.insert("again").generation, 0);
        assert_eq!(table.get_mut(last), None);
    }

    #[test]
    fn a_key_survives_its_number() {
        let mut table = Table::new();
        let gone = table.insert(());
        table.remove(gone);
        let key = table.insert(());
        assert_eq!(Key::from_bits(key.to_bits()), key);
    }
}
