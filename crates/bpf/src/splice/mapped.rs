//! The table of flows, mapped into this program's memory.

use core::ptr::NonNull;
use std::io;
use std::os::fd::AsFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::layout::Spliced;

/// The mapped table. The programs write it at the same time.
#[derive(Debug)]
pub(super) struct Mapped {
    start: NonNull<Spliced>,
    count: usize,
}

// SAFETY: the memory belongs to no thread: the mapping stays until `Mapped` is dropped, and every field of `Spliced` is an atomic, which any
// thread, and the kernel's programs, may read and write at any time.
unsafe impl Send for Mapped {}
// SAFETY: as above; shared references give access to atomics only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a table of `count` flows.
    pub(super) fn map(table: impl AsFd, count: usize) -> io::Result<Self> {
        let bytes = count * size_of::<Spliced>();
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing of ours. The kernel refuses more bytes than the table has
        // (array_map_mmap), so every byte of it is backed.
        let start = unsafe {
            mmap(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, table, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, count })
    }

    /// The flow at a place of the table.
    ///
    /// # Panics
    /// Beyond the table.
    pub(super) fn at(&self, place: u32) -> &Spliced {
        let place = place as usize;
        assert!(place < self.count, "flow {place} of {}", self.count);
        // SAFETY: `place` is below `count`, so this stands within the mapping, which lasts as long as `self`. It is aligned: the mapping
        // begins at a page, and entries of the kernel's array follow each other at multiples of 8, the size of `Spliced` being one. Any
        // bytes are a valid `Spliced`, and all its fields are atomics, so others may write them meanwhile.
        unsafe { self.start.add(place).as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, of this length, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * size_of::<Spliced>()) };
    }
}
