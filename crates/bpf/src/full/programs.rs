//! Loading the programs, and taking them away.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier};
use typed_arena::Arena;

use super::layout::{Endpoint, RawBackend, RawListener, RawPort};
use super::places::LentPlaces;
use crate::again::kernel_function;
use crate::layout::Address;
use crate::links::{self, FULL_IN as IN, FULL_OUT as OUT, detach_full};
use crate::load::{Global, Loader};
use crate::programs::{FULL_IN, FULL_OUT};
use crate::splice::SPLICE_LAYOUT;
use crate::{AttachError, Device, Place};

const SECRET: &str = "tf_secret";

/// The tables that truepeer reads or writes.
pub(super) struct Maps {
    pub(super) listeners: HashMap<MapData, RawPort, RawListener>,
    pub(super) backends: HashMap<MapData, Endpoint, RawBackend>,
    pub(super) senders: LpmTrie<MapData, Address, u32>,
    pub(super) claims: LpmTrie<MapData, Address, u32>,
    pub(super) denied: LpmTrie<MapData, Address, u32>,
    pub(super) places: LentPlaces,
    pub(super) looked: Array<MapData, u64>,
    pub(super) counters: PerCpuArray<MapData, u64>,
}

/// A pinned table of [`SPLICE_LAYOUT`], of the type that the context asks for.
macro_rules! open {
    ($place:expr, $kind:ident, $name:literal) => {
        Map::$kind(MapData::from_pin($place.maps().join($name)).map_err(AttachError::map("opening", $name))?)
            .try_into()
            .map_err(AttachError::map("opening", $name))?
    };
}
pub(crate) use open;

/// Attaches the programs behind those that translate, which know the open sessions. Tables of an earlier
/// process are removed: its listeners are gone. An heir keeps the tables, and replaces the programs of the
/// process that still serves.
pub(super) fn attach(pins: &Path, devices: &[Device], is_heir: bool) -> Result<(Place, Maps), AttachError> {
    let function = kernel_function().ok_or(AttachError::NoAssign)?;
    let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
    if !is_heir {
        detach_full(&place)?;
    }
    let secret = secret_at(&place)?.unwrap_or_else(secret);
    let globals = Arena::new();
    let mut loader = Loader::new(&place, &globals);
    loader.set(Global::FullSecret(secret));
    for (object, stage, function) in [(FULL_OUT, OUT, None), (FULL_IN, IN, Some(function))] {
        let mut loaded = loader.load_calling(object, function)?;
        let program: &mut SchedClassifier = loaded
            .program(object.name)
            .try_into()
            .map_err(|error: ProgramError| AttachError::attach(object.name, "the kernel")(error))?;
        program.load().map_err(AttachError::attach(object.name, "the kernel"))?;
        devices.iter().try_for_each(|device| links::attach_to_device(&place, program, stage, device))?;
    }
    tell(&place, secret)?;
    let maps = Maps {
        listeners: open!(place, HashMap, "tf_listeners"),
        backends: open!(place, HashMap, "tf_backends"),
        senders: open!(place, LpmTrie, "tp_senders"),
        claims: open!(place, LpmTrie, "tp_claims"),
        denied: open!(place, LpmTrie, "tp_denied"),
        places: LentPlaces::open(&place)?,
        looked: open!(place, Array, "tf_looked"),
        counters: open!(place, PerCpuArray, "tf_counters"),
    };
    Ok((place, maps))
}

/// The secret of programs that are attached already.
fn secret_at(place: &Place) -> Result<Option<[u64; 2]>, AttachError> {
    if !place.maps().join(SECRET).exists() {
        return Ok(None);
    }
    let table: Array<MapData, u64> = open!(place, Array, "tf_secret");
    let word = |at| table.get(&at, 0).map_err(AttachError::map("reading", SECRET));
    let words = [word(0)?, word(1)?];
    // Zeros: the process that made the table was killed before its programs were used.
    Ok((words != [0; 2]).then_some(words))
}

fn tell(place: &Place, secret: [u64; 2]) -> Result<(), AttachError> {
    let mut table: Array<MapData, u64> = open!(place, Array, "tf_secret");
    let mut words = (0_u32..).zip(secret);
    words.try_for_each(|(at, word)| table.set(at, word, 0)).map_err(AttachError::map("writing", SECRET))
}

/// A secret that nobody can guess: the keys of `RandomState` come from the operating system, and its hash
/// (SipHash) doesn't reveal them.
fn secret() -> [u64; 2] {
    [RandomState::new().hash_one(0), RandomState::new().hash_one(1)]
}
