//! Loading the splice programs, and attaching them to devices.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::path::Path;

use aya::programs::{ProgramError, SchedClassifier};
use rustix::fs::{FlockOperation, flock};

use super::layout::SPLICE_LAYOUT;
use crate::links::{self, SPLICE_IN as IN, SPLICE_OUT as OUT, Stage};
use crate::load::{Global, load_sized};
use crate::programs::{Object, SPLICE_IN, SPLICE_OUT};
use crate::{AttachError, Device, Place};

/// Attached: the place of the tables, and what keeps other processes from it.
pub(super) struct Attached {
    pub(super) place: Place,
    pub(super) lock: File,
}

/// Egress comes first: no flow is armed before the caller has the tables, and from then on both directions are seen.
pub(super) fn attach(pins: &Path, devices: &[Device], flows: NonZeroU32) -> Result<Attached, AttachError> {
    SPLICE_IN.bytes()?;
    let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
    place.make()?;
    let lock = File::open(place.path()).map_err(AttachError::file("open", place.path()))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| AttachError::file("flock", place.path())(error.into()))?;
    for (object, stage) in [(SPLICE_OUT, OUT), (SPLICE_IN, IN)] {
        attach_one(&place, object, stage, devices, flows)?;
    }
    Ok(Attached { place, lock })
}

fn attach_one(
    place: &Place,
    object: Object,
    stage: Stage,
    devices: &[Device],
    flows: NonZeroU32,
) -> Result<(), AttachError> {
    let sizes = [("ts_flows", flows.get()), ("ts_keys", flows.get().saturating_mul(2))];
    let globals = [Global::CopyMark(random_mark())];
    let mut loaded = load_sized(object, place, &globals, &sizes)?;
    let program: &mut SchedClassifier = loaded
        .program(object.name)
        .try_into()
        .map_err(|error: ProgramError| AttachError::attach(object.name, "the kernel")(error))?;
    program.load().map_err(AttachError::attach(object.name, "the kernel"))?;
    devices.iter().try_for_each(|device| links::attach_to_device(place, program, stage, device))
}

/// Nobody else marks packets so by accident. Never 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).unwrap_or_default().max(1)
}
