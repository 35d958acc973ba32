//! Loading the splice programs, and attaching them to devices.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{ProgramError, SchedClassifier};
use typed_arena::Arena;

use super::keys::buckets_for;
use super::layout::SPLICE_LAYOUT;
use super::locks::{Locks, SHARES, share_at};
use crate::links::{self, SPLICE_IN as IN, SPLICE_OUT as OUT, Stage};
use crate::load::{Global, Loader};
use crate::programs::{Object, SPLICE_IN, SPLICE_OUT};
use crate::{AttachError, Device, Place, leftovers, trust};

/// How long another process may take to attach its programs, or to find that nobody needs the tables
/// ([`super::remove_unused`]).
const OTHERS: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// Attaches the programs. Returns the place of the tables, and the locks: no other process starts until the
/// caller [lets it](Locks::let_others_start). No flow is armed before the caller has the tables, so the
/// programs see both directions of each flow from its beginning.
pub(super) fn attach(
    pins: &Path,
    devices: &[Device],
    flows: NonZeroU32,
) -> Result<(Place, Locks), AttachError> {
    SPLICE_IN.bytes()?;
    let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
    // Tables of network namespaces that are gone take 22 MiB each. If it fails, they stay until the next
    // start.
    let _ = leftovers::sweep(&place);
    let _ = place.remove_rest();
    let locks = start_alone(&place)?;
    let globals = Arena::new();
    let mut loader = Loader::new(&place, &globals);
    loader.size([("ts_flows", flows.get()), ("ts_keys", buckets_for(flows.get()))]);
    for (object, stage) in [(SPLICE_OUT, OUT), (SPLICE_IN, IN)] {
        attach_one(&place, object, stage, devices, &mut loader)?;
    }
    Ok((place, locks))
}

/// Makes the place, and waits until no other process starts or removes it.
fn start_alone(place: &Place) -> Result<Locks, AttachError> {
    let begun = Instant::now();
    loop {
        place.make()?;
        (0..SHARES).try_for_each(|share| trust::make(&share_at(place, share)))?;
        let is_late = begun.elapsed() > OTHERS;
        match Locks::open(place) {
            Ok(locks) if locks.start_alone() && locks.are_of(place) => return Ok(locks),
            Err(failed) if is_late => return Err(failed),
            _ if is_late => return Err(AttachError::TablesTaken),
            _ => thread::sleep(PAUSE),
        }
    }
}

fn attach_one(
    place: &Place,
    object: Object,
    stage: Stage,
    devices: &[Device],
    loader: &mut Loader<'_>,
) -> Result<(), AttachError> {
    loader.set(Global::CopyMark(random_mark()));
    let mut loaded = loader.load(object)?;
    let program: &mut SchedClassifier = loaded
        .program(object.name)
        .try_into()
        .map_err(|error: ProgramError| AttachError::attach(object.name, "the kernel")(error))?;
    program.load().map_err(AttachError::attach(object.name, "the kernel"))?;
    links::pin_program(place, program, stage)?;
    devices.iter().try_for_each(|device| links::attach_to_device(place, program, stage, device))
}

/// Random, so that no other program marks its packets in the same way. Neither it nor its complement, with
/// which splice_in marks, is 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).unwrap_or_default().clamp(1, u32::MAX - 1)
}
