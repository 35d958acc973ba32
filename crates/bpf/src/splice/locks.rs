//! Which process may do what with the tables. Each lock is a directory's (flock): a BPF file system has no
//! other files to lock, and the kernel lets go of it when the process ends.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::{AttachError, Place};

/// A part of the places in the table of flows. Its owner begins flows there, and answers for them.
pub(super) type Share = u8;

/// So many processes share the tables of a network namespace.
pub(super) const SHARES: Share = 32;

/// The directory of a share.
pub(super) fn share_at(place: &Place, share: Share) -> PathBuf {
    place.shares().join(share.to_string())
}

/// The locks of the tables, opened before the process confines itself and can't open them any more.
pub(super) struct Locks {
    /// Held for a moment by a process that starts, takes over, or removes everything.
    tables: File,
    /// Shared by processes that have handed over and still have flows.
    elders: File,
    /// Shared by all that have the tables open.
    users: File,
    /// The owner of each share has its lock.
    shares: Vec<File>,
}

impl Locks {
    /// Opens them. Err: also while somebody removes the tables.
    pub(super) fn open(place: &Place) -> Result<Self, AttachError> {
        let open = |directory: PathBuf| File::open(&directory).map_err(AttachError::file("open", directory));
        let users = open(place.maps())?;
        flock(&users, FlockOperation::NonBlockingLockShared)
            .map_err(|error| AttachError::file("flock", place.maps())(error.into()))?;
        let shares = (0..SHARES).map(|share| open(share_at(place, share))).collect::<Result<_, _>>()?;
        Ok(Self { tables: open(place.path())?, elders: open(place.links())?, users, shares })
    }

    /// The lock of the tables at this place; `None`: another process has it, or these are other tables than
    /// those with this identity.
    pub(super) fn of_tables(place: &Place, identity: (u64, u64)) -> Option<impl Sized + use<>> {
        let tables = File::open(place.path()).ok()?;
        let is_same = tables.metadata().is_ok_and(|found| (found.dev(), found.ino()) == identity);
        (is_same && try_lock(&tables)).then_some(tables)
    }

    /// Whether no other process has the tables open: then none can open them from now on.
    pub(super) fn are_alone(&self) -> bool {
        try_lock(&self.users)
    }

    /// Whether these are the tables at this place: others may have been removed meanwhile.
    pub(super) fn are_of(&self, place: &Place) -> bool {
        let id = |found: Metadata| (found.dev(), found.ino());
        let own = self.tables.metadata().map(id).ok();
        own.is_some() && own == fs::metadata(place.path()).map(id).ok()
    }

    /// Tries to keep others from starting, taking over and removing the tables.
    pub(super) fn start_alone(&self) -> bool {
        try_lock(&self.tables)
    }

    pub(super) fn let_others_start(&self) {
        unlock(&self.tables);
    }

    /// Tries to take a share. True: this process has it.
    pub(super) fn take(&self, share: Share) -> bool {
        self.shares.get(usize::from(share)).is_some_and(try_lock)
    }

    /// All shares that no other process has: this one has them now.
    pub(super) fn take_free(&self) -> Vec<Share> {
        (0..SHARES).filter(|share| self.take(*share)).collect()
    }

    pub(super) fn give(&self, share: Share) {
        self.shares.get(usize::from(share)).into_iter().for_each(unlock);
    }

    /// Lets another process have these shares. This one may still have flows there: `elders` is locked first,
    /// so the next owner leaves them alone.
    pub(super) fn hand_over(&self, shares: &[Share]) {
        // If it fails, the next owner resets those flows.
        let _ = flock(&self.elders, FlockOperation::NonBlockingLockShared);
        shares.iter().for_each(|share| self.give(*share));
    }

    /// Whether a process that has handed over still lives.
    pub(super) fn have_elder(&self) -> bool {
        let is_free = try_lock(&self.elders);
        if is_free {
            unlock(&self.elders);
        }
        !is_free
    }
}

fn try_lock(directory: &File) -> bool {
    flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn unlock(directory: &File) {
    // Can't fail: the file is open.
    let _ = flock(directory, FlockOperation::Unlock);
}
