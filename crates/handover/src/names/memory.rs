//! The table's memory: a sealed memfd, mapped.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::slot::{self, Slot};

/// Changes with the layout, so that different versions of truepeer don't share a table.
const MAGIC: u64 = 0x7470_6e61_6d65_0005;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

#[derive(Debug)]
#[repr(C)]
struct Head {
    magic: AtomicU64,
    word: [AtomicU64; 2],
    /// The number of slots in use.
    size: AtomicU64,
    /// The inodes of the sockets over which late connections are passed; 0 until they are known.
    queue: [AtomicU64; 2],
    /// 1: a late connection is ready, and no wake-up comes for it.
    announced: AtomicU64,
    /// Keeps slots off the head's cache line.
    _reserved: AtomicU64,
}

/// Owns the mapping: `slots` after a [`Head`], `bytes` long, until dropped.
#[derive(Debug)]
pub(super) struct Memory {
    start: *const u8,
    bytes: usize,
    slots: usize,
}

// SAFETY: the mapping holds atomic integers only, which any thread may use; `start` never changes.
unsafe impl Send for Memory {}
// SAFETY: the mapping holds atomic integers only, which several threads may use at once; `start` never
// changes.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn create(slots: usize, first_size: usize, word: [u8; 16]) -> Result<(Self, OwnedFd), Errno> {
        let fd = memfd_create(c"truepeer-names", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes_of(slots) as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        let memory = Self::map(fd.as_fd(), slots)?;
        slot::store(&memory.head().word, word);
        memory.head().size.store(first_size as u64, Ordering::Relaxed);
        memory.head().magic.store(MAGIC, Ordering::Release);
        Ok((memory, fd))
    }

    pub(super) fn open(fd: BorrowedFd<'_>, slots: usize) -> Result<Self, Errno> {
        let right_size = u64::try_from(fstat(fd)?.st_size) == Ok(bytes_of(slots) as u64);
        // The seals prevent a shrinking file, which would kill this process by SIGBUS.
        if !right_size || !fcntl_get_seals(fd)?.contains(SEALS) {
            return Err(Errno::INVAL);
        }
        let memory = Self::map(fd, slots)?;
        if memory.head().magic.load(Ordering::Acquire) == MAGIC { Ok(memory) } else { Err(Errno::INVAL) }
    }

    /// `fd` must have at least `bytes_of(slots)` bytes and be sealed against shrinking.
    fn map(fd: BorrowedFd<'_>, slots: usize) -> Result<Self, Errno> {
        let (bytes, protection) = (bytes_of(slots), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: mmap(2) without MAP_FIXED creates a new mapping at a free address, so no existing memory is
        // affected.
        let start = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) }?;
        Ok(Self { start: start.cast_const().cast(), bytes, slots })
    }

    pub(super) fn slots(&self) -> &[Slot] {
        // SAFETY: after the head, within the `bytes` mapped for the life of `self`, are `slots` of them
        // (bytes_of), aligned as the head's length is a multiple of theirs; any bit pattern is a
        // valid atomic integer, and all is written through atomics, here as in other processes.
        unsafe { core::slice::from_raw_parts(self.start.add(size_of::<Head>()).cast(), self.slots) }
    }

    pub(super) fn word(&self) -> [u8; 16] {
        slot::load(&self.head().word)
    }

    pub(super) fn queue(&self) -> &[AtomicU64; 2] {
        &self.head().queue
    }

    pub(super) fn announced(&self) -> &AtomicU64 {
        &self.head().announced
    }

    pub(super) fn size(&self) -> &AtomicU64 {
        &self.head().size
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with it, is page-aligned, and lives as long as `self`; it has atomic
        // integers only.
        unsafe { &*self.start.cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of the mapping, and references into it can't outlive `self`.
        let _ = unsafe { munmap(self.start.cast_mut().cast(), self.bytes) };
    }
}

const fn bytes_of(slots: usize) -> usize {
    size_of::<Head>() + slots * size_of::<Slot>()
}
