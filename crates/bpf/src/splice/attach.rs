//! Loading the splice programs, and attaching them to devices.

use std::fs::{self, File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{ProgramError, SchedClassifier};
use rustix::fs::{FlockOperation, flock};

use super::keys::buckets_for;
use super::layout::SPLICE_LAYOUT;
use crate::links::{self, SPLICE_IN as IN, SPLICE_OUT as OUT, Stage};
use crate::load::{Global, load_sized};
use crate::programs::{Object, SPLICE_IN, SPLICE_OUT};
use crate::{AttachError, Device, Place, leftovers};

/// How long somebody may take to find that nobody needs the tables ([`super::remove_unused`]).
const REMOVING: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the place of the tables, their locks, and whether this process owns them: an heir may not. No flow
/// is armed before the caller has the tables, so the programs see both directions of each flow from its
/// beginning.
pub(super) fn attach(
    pins: &Path,
    devices: &[Device],
    flows: NonZeroU32,
    as_heir: bool,
) -> Result<(Place, Locks, bool), AttachError> {
    SPLICE_IN.bytes()?;
    let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
    // Tables of network namespaces that are gone take 22 MiB each. If it fails, they stay until the next
    // start.
    let _ = leftovers::sweep(&place);
    let _ = place.remove_rest();
    let (locks, is_owner) = take(&place, as_heir)?;
    if !is_owner && !as_heir {
        return Err(AttachError::TablesTaken);
    }
    if is_owner {
        links::detach_full(&place)?;
    }
    for (object, stage) in [(SPLICE_OUT, OUT), (SPLICE_IN, IN)] {
        attach_one(&place, object, stage, devices, flows)?;
    }
    Ok((place, locks, is_owner))
}

/// Makes the place, and tries to own its tables. A process that has ended may be removing them.
fn take(place: &Place, as_heir: bool) -> Result<(Locks, bool), AttachError> {
    let begun = Instant::now();
    loop {
        place.make()?;
        let is_late = begun.elapsed() > REMOVING;
        match Locks::open(place) {
            Ok(locks) => {
                let is_owner = locks.own() && locks.are_of(place);
                let is_heir = as_heir && locks.are_of(place);
                if is_owner || is_heir || is_late {
                    return Ok((locks, is_owner));
                }
            }
            Err(failed) if is_late => return Err(failed),
            Err(_) => {}
        }
        thread::sleep(PAUSE);
    }
}

/// The locks of the tables, opened before the process confines itself and can't open them any more.
pub(super) struct Locks {
    tables: File,
    elders: File,
    /// Shared by all that have the tables open.
    users: File,
}

impl Locks {
    /// Opens them. Err: also while somebody removes the tables.
    pub(super) fn open(place: &Place) -> Result<Self, AttachError> {
        let open = |directory: std::path::PathBuf| {
            File::open(&directory).map_err(AttachError::file("open", directory))
        };
        let users = open(place.maps())?;
        flock(&users, FlockOperation::NonBlockingLockShared)
            .map_err(|error| AttachError::file("flock", place.maps())(error.into()))?;
        Ok(Self { tables: open(place.path())?, elders: open(place.links())?, users })
    }

    /// Whether no other process has the tables open: then none can open them from now on.
    pub(super) fn are_alone(&self) -> bool {
        flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Whether these are the tables at this place: others may have been removed meanwhile.
    fn are_of(&self, place: &Place) -> bool {
        let id = |found: Metadata| (found.dev(), found.ino());
        let own = self.tables.metadata().map(id).ok();
        own.is_some() && own == fs::metadata(place.path()).map(id).ok()
    }

    /// Tries to take the tables. True: this process has them.
    pub(super) fn own(&self) -> bool {
        flock(&self.tables, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Lets another process have the tables. This process may still have flows: `elders` is locked first, so
    /// the next owner leaves them alone.
    pub(super) fn hand_over(&self) {
        // If it fails, the next owner resets those flows.
        let _ = flock(&self.elders, FlockOperation::NonBlockingLockShared);
        self.disown();
    }

    /// Lets another process have the tables.
    pub(super) fn disown(&self) {
        // Can't fail: the file is open.
        let _ = flock(&self.tables, FlockOperation::Unlock);
    }

    /// Whether a process that has handed over still lives.
    pub(super) fn have_elder(&self) -> bool {
        let is_free = flock(&self.elders, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_free {
            // Can't fail: the file is open.
            let _ = flock(&self.elders, FlockOperation::Unlock);
        }
        !is_free
    }
}

fn attach_one(
    place: &Place,
    object: Object,
    stage: Stage,
    devices: &[Device],
    flows: NonZeroU32,
) -> Result<(), AttachError> {
    let sizes = [("ts_flows", flows.get()), ("ts_keys", buckets_for(flows.get()))];
    let globals = [Global::CopyMark(random_mark())];
    let mut loaded = load_sized(object, place, &globals, &sizes)?;
    let program: &mut SchedClassifier = loaded
        .program(object.name)
        .try_into()
        .map_err(|error: ProgramError| AttachError::attach(object.name, "the kernel")(error))?;
    program.load().map_err(AttachError::attach(object.name, "the kernel"))?;
    devices.iter().try_for_each(|device| links::attach_to_device(place, program, stage, device))
}

/// Random, so that no other program marks its packets in the same way. Neither it nor its complement, with
/// which splice_in marks, is 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).unwrap_or_default().clamp(1, u32::MAX - 1)
}
