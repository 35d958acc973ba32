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
//! connection is most probably closed: the kernel is asked, and only what is closed is forgotten. It is believed that a
//! connection is closed only if it sees one of the others, or the one that has just been accepted. The table begins small and
//! doubles where everything is open, so that memory follows open connections, not past ones; names stay where they were
//! written, and are looked for at each size that the table has had. Where the kernel can't be asked, a full table forgets the
//! oldest.

mod diag;
mod memory;
mod slot;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::getsockname;
use truepeer_sys::socket::{bound_device, namespace_cookie};

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

/// The two ends of a connection, in canonical form, and where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// The application's end.
    pub local: SocketAddr,
    /// The sender's end.
    pub sender: SocketAddr,
    /// The device that it is bound to (index); 0 if to none.
    pub device: u32,
    /// Of its network namespace's cookie as much as tells it from others; 0 where the kernel gives none (before Linux 5.14).
    pub namespace: u32,
}

impl Tuple {
    /// That of an accepted connection.
    ///
    /// # Errors
    /// What getsockname(2) says.
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

fn namespace_of(socket: BorrowedFd<'_>) -> u32 {
    namespace_cookie(socket).map_or(0, |cookie| u32::try_from(cookie & u64::from(u32::MAX)).unwrap_or(0))
}

/// How a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Somebody has it open.
    Open,
    /// There is none, or nobody has it.
    Closed,
    /// It can't be seen from here.
    Unknown,
}

/// Who can say whether a connection is still there.
pub trait Census {
    /// How the socket with this cookie and these ends is.
    fn ask(&mut self, cookie: u64, tuple: &Tuple) -> Standing;
}

/// What it took to remember a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Remembered {
    /// A free place.
    InRoom,
    /// The place of an older connection, which may be open still: the census could not say.
    InPlaceOfAnother,
}

/// What is to be said of [`Remembered::InPlaceOfAnother`].
pub const OLDEST_FORGOTTEN: &str = "the kernel can't be asked which connections are still open, so the clients of the oldest are forgotten: \
     getpeername() answers with the sender for them; permit AF_NETLINK (systemd: RestrictAddressFamilies), load tcp_diag, \
     or listen in the network namespace that truepeer is started in";

/// What is to be said at the start if there is no answer ([`SocketDiag::is_answered`]).
pub const NO_CENSUS: &str = "the kernel can't be asked which connections are still open: 65,536 connections later, the clients of the \
     oldest are forgotten; permit AF_NETLINK (systemd: RestrictAddressFamilies)";

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

    /// The inodes of the sockets that those who share this table hand late connections over by; 0: there are none.
    pub fn queue(&self) -> [u64; 2] {
        self.memory.queue().each_ref().map(|inode| inode.load(Ordering::Acquire))
    }

    /// Says which these are.
    pub fn set_queue(&self, inodes: [u64; 2]) {
        self.memory
            .queue()
            .iter()
            .zip(inodes)
            .for_each(|(queue, inode)| queue.store(inode, Ordering::Release));
    }

    /// Gives a connection its client's name, before anybody else has its descriptor.
    ///
    /// # Errors
    /// If all places are taken by open connections.
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

    /// Looks through the whole window, so that the next insertions find room without asking the kernel. Gives the oldest
    /// connection of which nobody knows whether it is open.
    fn forget_closed(&self, cookie: u64, size: usize, name: &Name, census: &mut dyn Census) -> Option<u64> {
        // Of a connection that has just been accepted the answer is known, unless it has been reset.
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
            // Whoever was faster has freed it, too.
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
