//! Loading the splice programs, and attaching them to devices.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::path::Path;

use aya::programs::{ProgramError, SchedClassifier};
use rustix::fs::{FlockOperation, flock};

use super::keys::buckets_for;
use super::layout::SPLICE_LAYOUT;
use crate::links::{self, SPLICE_IN as IN, SPLICE_OUT as OUT, Stage};
use crate::load::{Global, load_sized};
use crate::programs::{Object, SPLICE_IN, SPLICE_OUT};
use crate::{AttachError, Device, Place, leftovers};

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
    place.make()?;
    let locks = Locks::open(&place)?;
    let is_owner = locks.own();
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

/// The locks of the tables, opened before the process confines itself and can't open them any more.
pub(super) struct Locks {
    tables: File,
    elders: File,
}

impl Locks {
    /// Opens them.
    pub(super) fn open(place: &Place) -> Result<Self, AttachError> {
        let open = |directory: std::path::PathBuf| {
            File::open(&directory).map_err(AttachError::file("open", directory))
        };
        Ok(Self { tables: open(place.path())?, elders: open(place.links())? })
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
