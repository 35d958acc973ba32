//! The clients of open connections, by the kernel's identifier of each socket (SO_COOKIE).
//!
//! A socket keeps its cookie, and cookies are unique, whichever process holds the socket under whichever
//! descriptor. So dup, fork, SCM_RIGHTS and exec need no handling. A program and its children share the
//! table's memory.
//!
//! ```text
//! head │ slot slot slot …    slot = cookie mod size, or one of WINDOW, spread over the table
//! ```
//! Slots are taken by compare-and-swap. There is no lock: a process that is killed during an insertion leaves
//! one unusable slot, and no other process waits for it. Cookies count up, so a slot is needed again a whole
//! table later, when its connection is probably closed. The kernel is asked, and only closed connections are
//! forgotten. Its answer "closed" is trusted only if the same query also finds an open one: another
//! connection, or the one just accepted. The table starts small and doubles when all its connections are
//! open, so memory follows open connections, not past ones. Names stay where they were written, and are
//! searched for at each size that the table has had. If the kernel can't be asked, a full table forgets the
//! oldest connection.

mod diag;
mod memory;
mod slot;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use truepeer_sys::marked::getsockname;
use truepeer_sys::socket::bound_device;

pub use diag::SocketDiag;
use memory::Memory;
use slot::{FREE, NEVER_USED, Slot, TAKEN};

use crate::listener::namespace_of;
use crate::wake::WakeUp;

/// The approximate number of open connections that can have a name; 96 bytes each.
const SLOTS: usize = 1 << 16;
/// The number of slots at the start.
const FIRST_SIZE: usize = 1 << 10;
/// The number of slots in which a name may be. They are spread: long-lived connections are often opened one
/// after another, and would fill a window of neighbouring slots for all later ones.
const WINDOW: usize = 32;

/// What is stored about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// The client's address in the form that the application sees (the family of its socket).
    pub client: SocketAddr,
    /// The address that the client connected to, in the same form.
    pub destination: Option<SocketAddr>,
    /// The kernel's identification of the connection.
    pub tuple: ConnectionTuple,
}

/// The two ends of a connection in canonical form, its device, and its network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionTuple {
    /// The application's end.
    pub local: SocketAddr,
    /// The sender's end.
    pub sender: SocketAddr,
    /// The index of the device that it is bound to; 0: none.
    pub device: u32,
    /// A part of its network namespace's cookie, enough to distinguish it; 0 before Linux 5.14, which has
    /// none.
    pub namespace: u32,
}

impl ConnectionTuple {
    /// Reads those of an accepted connection.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn of(socket: BorrowedFd<'_>, sender: SocketAddr) -> Result<Self, Errno> {
        let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        let local = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(Self {
            local: canonical(local),
            sender: canonical(sender),
            device: bound_device(socket),
            namespace: namespace_of(socket),
        })
    }
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A process has it open.
    Open,
    /// It doesn't exist, or no process has it open.
    Closed,
    /// It can't be determined from here.
    Unknown,
}

/// Answers whether a connection is still open.
pub trait Census {
    /// The state of the socket with this cookie and these ends.
    fn ask(&mut self, cookie: u64, tuple: &ConnectionTuple) -> Standing;
}

/// How a name was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Remembered {
    /// In a free slot.
    InRoom,
    /// In the slot of an older connection. It may still be open: the census could not tell.
    InPlaceOfAnother,
}

/// The warning for [`Remembered::InPlaceOfAnother`].
pub const OLDEST_FORGOTTEN: &str = "the kernel can't be asked which connections are still open, so the \
    oldest clients are forgotten: getpeername() then returns their sender; permit AF_NETLINK (systemd: \
    RestrictAddressFamilies), load tcp_diag, or listen in the network namespace that truepeer is started in";

/// The warning at the start if the kernel doesn't answer ([`SocketDiag::is_answered`]).
pub const NO_CENSUS: &str = "the kernel can't be asked which connections are still open: 65,536 connections \
    later, the clients of the oldest are forgotten; permit AF_NETLINK (systemd: RestrictAddressFamilies)";

/// Every slot that the name could use belongs to an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many connections are open to remember their clients")]
pub struct NamesFull;

/// The table.
#[derive(Debug)]
pub struct Names {
    memory: Memory,
}

impl Names {
    /// Creates an empty table in its own memory, which a descriptor represents.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2) and getrandom(2).
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let word = WakeUp::new()?.word();
        let (memory, fd) = Memory::create(SLOTS, FIRST_SIZE, word)?;
        Ok((Self { memory }, fd))
    }

    /// Opens the table that another process has created.
    ///
    /// # Errors
    /// Those of fstat(2) and mmap(2); `EINVAL` if the descriptor is not a table.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(Self { memory: Memory::open(fd.as_fd(), SLOTS)? })
    }

    /// The wake-up word of the processes that share this table.
    pub fn wake_up(&self) -> WakeUp {
        WakeUp::with_word(self.memory.word())
    }

    /// The inodes of the sockets over which these processes pass late connections; 0: none yet.
    pub fn queue(&self) -> [u64; 2] {
        self.memory.queue().each_ref().map(|inode| inode.load(Ordering::Acquire))
    }

    /// Stores these inodes.
    pub fn set_queue(&self, inodes: [u64; 2]) {
        self.memory
            .queue()
            .iter()
            .zip(inodes)
            .for_each(|(queue, inode)| queue.store(inode, Ordering::Release));
    }

    /// Says that a late connection is ready and that the application was woken by other means than
    /// [`WakeUp::ring`].
    pub fn announce(&self) {
        self.memory.announced().store(1, Ordering::Release);
    }

    /// Whether a late connection was announced, and nobody has looked for it since.
    pub fn is_announced(&self) -> bool {
        self.memory.announced().load(Ordering::Acquire) != 0
    }

    /// Whether a late connection was announced since the last call. Take all that are ready, or announce them
    /// again.
    pub fn take_announcement(&self) -> bool {
        let announced = self.memory.announced();
        announced.load(Ordering::Acquire) != 0 && announced.swap(0, Ordering::AcqRel) != 0
    }

    /// Stores the name of a connection. Call it before any other process has its descriptor.
    ///
    /// # Errors
    /// All its slots belong to open connections.
    pub fn insert(&self, cookie: u64, name: &Name, census: &mut dyn Census) -> Result<Remembered, NamesFull> {
        loop {
            let size = self.size();
            if self.claim(cookie, size, name) {
                return Ok(Remembered::InRoom);
            }
            let doubtful = self.forget_closed(cookie, size, name, census);
            if self.claim(cookie, size, name) {
                return Ok(Remembered::InRoom);
            }
            if size >= SLOTS {
                let oldest = doubtful.ok_or(NamesFull)?;
                self.forget(cookie, size, oldest);
                if self.claim(cookie, size, name) {
                    return Ok(Remembered::InPlaceOfAnother);
                }
                continue; // another process was faster
            }
            // If another process has doubled it first, that suffices.
            let _ = self.memory.size().compare_exchange(
                size as u64,
                2 * size as u64,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// The number of slots in use.
    fn size(&self) -> usize {
        let size = usize::try_from(self.memory.size().load(Ordering::Acquire)).unwrap_or(SLOTS);
        size.clamp(FIRST_SIZE, SLOTS)
    }

    /// The name of a connection, if it has one.
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

    /// All names with their cookies, also of connections that have been closed.
    pub fn all(&self) -> impl Iterator<Item = (u64, Name)> {
        self.memory.slots()[..self.size()].iter().filter_map(|slot| {
            let cookie = slot.cookie.load(Ordering::Acquire);
            let is_one = !matches!(cookie, NEVER_USED | FREE | TAKEN);
            Some((cookie, slot.read(cookie).filter(|_| is_one)?))
        })
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

    /// Searches the whole window, so that the next insertions find free slots without asking the kernel.
    /// Returns the oldest connection whose state is unknown.
    fn forget_closed(&self, cookie: u64, size: usize, name: &Name, census: &mut dyn Census) -> Option<u64> {
        // A connection that has just been accepted is known to be open, unless it was reset.
        let mut sees = census.ask(cookie, &name.tuple) == Standing::Open;
        let mut asked = [(0, Standing::Open); WINDOW];
        for (slot, asked) in self.window(cookie, size).zip(&mut asked) {
            let occupant = slot.cookie.load(Ordering::Acquire);
            if matches!(occupant, NEVER_USED | FREE | TAKEN) {
                continue;
            }
            if let Some(name) = slot.read(occupant) {
                *asked = (occupant, census.ask(occupant, &name.tuple));
                sees |= asked.1 == Standing::Open;
            }
        }
        let believed = |standing| standing == Standing::Closed && sees;
        for (occupant, _) in asked.iter().filter(|(_, standing)| believed(*standing)) {
            self.forget(cookie, size, *occupant);
        }
        let doubtful =
            asked.iter().filter(|(_, standing)| *standing != Standing::Open && !believed(*standing));
        doubtful.map(|(occupant, _)| *occupant).min()
    }

    fn forget(&self, cookie: u64, size: usize, occupant: u64) {
        for slot in self.window(cookie, size) {
            // If another process has freed it first, that suffices.
            let _ = slot.cookie.compare_exchange(occupant, FREE, Ordering::AcqRel, Ordering::Relaxed);
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
