//! Tables mapped into this program's memory.

use core::ptr::NonNull;
use std::io;
use std::os::fd::AsFd;

use aya::maps::MapData;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{AttachError, Place};

/// An entry of a mapped table.
///
/// # Safety
/// The type consists of atomics, any bytes are a valid value, its size is a multiple of 8, and its alignment
/// is a page's at most.
pub unsafe trait Shared: Sync {}

/// The mapped table. The programs write it at the same time.
#[derive(Debug)]
pub struct Mapped<T: Shared> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY: the memory belongs to no thread: the mapping stays until `Mapped` is dropped, and `T` consists of
// atomics (`Shared`), which any thread, and the kernel's programs, may read and write at any time.
unsafe impl<T: Shared> Send for Mapped<T> {}
// SAFETY: as above; shared references give access to atomics only.
unsafe impl<T: Shared> Sync for Mapped<T> {}

impl<T: Shared> Mapped<T> {
    /// Maps a pinned table.
    ///
    /// # Errors
    /// If a system call fails.
    pub(crate) fn open(place: &Place, name: &'static str) -> Result<Self, AttachError> {
        let table = MapData::from_pin(place.maps().join(name)).map_err(AttachError::map("opening", name))?;
        let count = table.info().map_err(AttachError::map("reading", name))?.max_entries();
        Self::map(table.fd(), count as usize).map_err(AttachError::file("mmap", name))
    }

    /// Maps a table of `count` entries.
    ///
    /// # Errors
    /// If the kernel refuses it: the table is shorter, or can't be mapped.
    pub fn map(table: impl AsFd, count: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 4096) };
        let bytes = count * size_of::<T>();
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing of ours. The kernel
        // refuses more bytes than the table has (array_map_mmap), so every byte of it is backed.
        let start = unsafe {
            mmap(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, table, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, count })
    }

    /// How many entries it has.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.count).unwrap_or(u32::MAX)
    }

    /// The entry at a place of the table.
    ///
    /// # Panics
    /// Beyond the table.
    pub fn at(&self, place: u32) -> &T {
        let place = place as usize;
        assert!(place < self.count, "entry {place} of {}", self.count);
        // SAFETY: `place` is below `count`, so this stands within the mapping, which lasts as long as `self`.
        // It is aligned: the mapping begins at a page, a multiple of T's alignment. The kernel's entries
        // follow each other at the value's size rounded up to 8: that is T's own size, a multiple of its
        // alignment. Any bytes are a valid `T`, which consists of atomics, so others may write them meanwhile
        // (`Shared`).
        unsafe { self.start.add(place).as_ref() }
    }
}

impl<T: Shared> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, of this length, and no reference into it outlives
        // `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * size_of::<T>()) };
    }
}
