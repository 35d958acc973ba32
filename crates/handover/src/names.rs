//! Who the clients of open connections are, by the kernel's number of each socket (SO_COOKIE).
//!
//! A socket has its cookie for life and no two have the same one, whoever holds it and under whatever descriptor: nothing
//! has to be noticed of dup, fork, SCM_RIGHTS or exec. The table is memory that a family of processes shares.
//!
//! ```text
//! head │ slot slot slot …    slot = cookie mod size, or one of WINDOW, spread over the table
//! ```
//! Slots are taken by compare-and-swap. There is no lock; a process that is killed within an insertion leaves one slot
//! unusable, and nobody waits for it. Cookies are counted up, so a slot comes up again a whole table later, when its
//! connection is most probably closed: the kernel is asked, and only what is closed is forgotten. The table begins small and
//! doubles where everything is open, so that memory follows open connections, not past ones; names stay where they were
//! written, and are looked for at each size that the table has had.

mod diag;
mod memory;
mod slot;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

pub use diag::SocketDiag;
use memory::Memory;
use slot::{FREE, NEVER_USED, Slot, TAKEN};

use crate::WakeUp;

/// Open connections that can have a name, more or less; 96 bytes each.
const SLOTS: usize = 1 << 16;
/// As many places are used at first.
const FIRST_SIZE: usize = 1 << 10;
/// In how many places a name may be. They are spread: connections that stay open were often opened one after another, and
/// would fill a window of neighbours for all that come by later.
const WINDOW: usize = 32;

/// What is known of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// As the application is to see it, in the form of its socket's family.
    pub client: SocketAddr,
    /// What the client connected to, likewise.
    pub destination: Option<SocketAddr>,
    /// How the kernel knows the connection.
    pub tuple: Tuple,
}

/// The two ends of a connection, in canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// The application's end.
    pub local: SocketAddr,
    /// The sender's end.
    pub sender: SocketAddr,
}

/// Who can say whether a connection is still there.
pub trait Census {
    /// Whether the socket with this cookie and these ends is still open. When in doubt it is.
    fn is_open(&mut self, cookie: u64, tuple: &Tuple) -> bool;
}

/// All places that a name could have are those of open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many connections are open to remember their clients")]
pub struct NamesFull;

/// The table.
#[derive(Debug)]
pub struct Names {
    memory: Memory,
}

impl Names {
    /// An empty table, in memory of its own that a descriptor stands for.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2), mmap(2) and getrandom(2) say.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let word = WakeUp::new()?.word();
        let (memory, fd) = Memory::create(SLOTS, FIRST_SIZE, word)?;
        Ok((Self { memory }, fd))
    }

    /// The table that another process has created.
    ///
    /// # Errors
    /// What fstat(2) and mmap(2) say; `EINVAL` if the descriptor is something else.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(Self { memory: Memory::open(fd.as_fd(), SLOTS)? })
    }

    /// The word of those who share this table.
    pub fn wake_up(&self) -> WakeUp {
        WakeUp::with_word(self.memory.word())
    }

    /// Gives a connection its client's name, before anybody else has its descriptor.
    ///
    /// # Errors
    /// If all places are taken by open connections.
    pub fn insert(&self, cookie: u64, name: &Name, census: &mut dyn Census) -> Result<(), NamesFull> {
        loop {
            let size = self.size();
            if self.claim(cookie, size, name) {
                return Ok(());
            }
            self.forget_closed(cookie, size, census);
            if self.claim(cookie, size, name) {
                return Ok(());
            }
            if size >= SLOTS {
                return Err(NamesFull);
            }
            // Whoever was faster has doubled it, too.
            let _ = self.memory.size().compare_exchange(
                size as u64,
                2 * size as u64,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// How many places are in use.
    fn size(&self) -> usize {
        let size = usize::try_from(self.memory.size().load(Ordering::Acquire)).unwrap_or(SLOTS);
        size.clamp(FIRST_SIZE, SLOTS)
    }

    /// The name of a connection, if it was given one.
    pub fn find(&self, cookie: u64) -> Option<Name> {
        let mut size = self.size();
        while size >= FIRST_SIZE {
            for slot in self.window(cookie, size) {
                match slot.cookie.load(Ordering::Acquire) {
                    NEVER_USED => break,
                    found if found == cookie => return slot.read(cookie),
                    _ => {}
                }
            }
            size /= 2;
        }
        None
    }

    fn claim(&self, cookie: u64, size: usize, name: &Name) -> bool {
        self.window(cookie, size).any(|slot| {
            let before = slot.cookie.load(Ordering::Relaxed);
            let ours = matches!(before, NEVER_USED | FREE)
                && slot.cookie.compare_exchange(before, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if ours {
                slot.write(cookie, name);
            }
            ours
        })
    }

    /// Looks through the whole window, so that the next insertions find room without asking the kernel.
    fn forget_closed(&self, cookie: u64, size: usize, census: &mut dyn Census) {
        for slot in self.window(cookie, size) {
            let occupant = slot.cookie.load(Ordering::Acquire);
            if matches!(occupant, NEVER_USED | FREE | TAKEN) {
                continue;
            }
            if let Some(name) = slot.read(occupant)
                && !census.is_open(occupant, &name.tuple)
            {
                // Whoever was faster has freed it, too.
                let _ = slot.cookie.compare_exchange(occupant, FREE, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    fn window(&self, cookie: u64, size: usize) -> impl Iterator<Item = &Slot> {
        let slots = &self.memory.slots()[..size];
        let start = usize::try_from(cookie % size as u64).unwrap_or(0);
        (0..WINDOW).map(move |n| &slots[(start + n * (size / WINDOW)) % size])
    }
}

#[cfg(test)]
mod tests;
