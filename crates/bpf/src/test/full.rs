//! For tests: runs `full_in` by BPF_PROG_TEST_RUN on made up frames, also on several CPUs at once.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::Pod;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};

use super::splice::Outcome;
use typed_arena::Arena;

use crate::again::kernel_function;
use crate::full::FULL_COUNTERS;
use crate::full::begun::monotonic_ns;
use crate::full::layout::{Endpoint, RawBackend, RawListener, RawPort, address_of, endpoint};
use crate::full::places::LentPlaces;
use crate::full::programs::open;
use crate::layout::Address;
use crate::load::{Loaded, Loader};
use crate::programs::of_tests::FULL_IN_TEST;
use crate::programs::{FULL_IN, Object};
use crate::splice::keys::{Bucket, Keys, count, fill};
use crate::splice::mapped::{Mapped, Shared};
use crate::splice::{SPLICE_LAYOUT, Spliced, Stage, key_of};
use crate::{AttachError, Place};

const NAME: &str = "full_in";
/// LOOPBACK_IFINDEX.
const LOOPBACK: u32 = 1;
const LONGEST: usize = 4096;
/// How many flows may begin before the next [`FullHarness::end`].
const PLACES: u32 = 8;

/// `struct full_sender`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawSender {
    device: u32,
    own_mss: u16,
    unused: u16,
}

const _: () = assert!(size_of::<RawSender>() == 8);

// SAFETY: repr(C) of integers of 4, 2 and 2 bytes, and the struct has 8 (asserted above): no padding, and
// every bit pattern is valid.
unsafe impl Pod for RawSender {}

/// `struct full_stop`.
#[repr(C)]
struct Stop {
    is_wanted: AtomicU32,
    has_come: AtomicU32,
    may_go: AtomicU32,
    has_gone: AtomicU32,
}

// SAFETY: four atomics of 4 bytes; any bytes are valid, and 16 is a multiple of 8.
unsafe impl Shared for Stop {}

/// The loaded program with one listener on loopback, whose sender and backend it knows.
pub struct FullHarness {
    program: Loaded,
    tables: Mutex<Tables>,
    stop: Option<Mapped<Stop>>,
}

struct Tables {
    newest: Array<MapData, u32>,
    looked: Array<MapData, u64>,
    dialled: Mapped<Bucket>,
    keys: Keys,
    flows: Mapped<Spliced>,
    places: LentPlaces,
    counters: PerCpuArray<MapData, u64>,
}

impl FullHarness {
    /// Loads the program with tables of its own at `pins`; needs CAP_BPF and CAP_NET_ADMIN. The sender is on
    /// loopback and must send a header.
    pub fn load(
        pins: &Path,
        listens: SocketAddr,
        sender: IpAddr,
        backend: SocketAddr,
    ) -> Result<Self, AttachError> {
        Self::load_object(FULL_IN, pins, listens, sender, backend)
    }

    /// Likewise, a program that can be made to [stop](Self::stop_next).
    pub fn load_stopping(
        pins: &Path,
        listens: SocketAddr,
        sender: IpAddr,
        backend: SocketAddr,
    ) -> Result<Self, AttachError> {
        Self::load_object(FULL_IN_TEST, pins, listens, sender, backend)
    }

    fn load_object(
        object: Object,
        pins: &Path,
        listens: SocketAddr,
        sender: IpAddr,
        backend: SocketAddr,
    ) -> Result<Self, AttachError> {
        let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
        place.make()?;
        let mut program = Loader::new(&place, &Arena::new()).load_calling(object, kernel_function())?;
        let loaded: Result<&mut SchedClassifier, _> = program.program(NAME).try_into();
        loaded.and_then(SchedClassifier::load).map_err(AttachError::attach(NAME, "the kernel"))?;
        know(&place, listens, sender, backend)?;
        let keys = Keys::open(&place)?;
        keys.begin()?;
        let tables = Tables {
            newest: open!(place, Array, "tf_newest"),
            looked: open!(place, Array, "tf_looked"),
            dialled: Mapped::open(&place, "tf_dialled")?,
            keys,
            flows: Mapped::open(&place, "ts_flows")?,
            places: LentPlaces::open(&place)?,
            counters: open!(place, PerCpuArray, "tf_counters"),
        };
        let stop = (object.name == FULL_IN_TEST.name).then(|| Mapped::open(&place, "tf_stop")).transpose()?;
        let harness = Self { program, tables: Mutex::new(tables), stop };
        for place in 0..PLACES {
            harness.tables().places.lend(place);
        }
        harness.look()?;
        Ok(harness)
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells the programs that truepeer lives; truepeer does it four times a second.
    pub fn look(&self) -> Result<(), AttachError> {
        let looked = &mut self.tables().looked;
        looked.set(0, monotonic_ns(), 0).map_err(AttachError::map("writing", "tf_looked"))
    }

    /// The next dial has this place, if it is free.
    pub fn dial_next_at(&self, place: u32) -> Result<(), AttachError> {
        self.tables().newest.set(0, place, 0).map_err(AttachError::map("writing", "tf_newest"))
    }

    fn stop(&self) -> &Stop {
        self.stop.as_ref().expect("a program that stops").at(0)
    }

    /// The next program that has found a dial stops before it takes the lock.
    ///
    /// # Panics
    /// The program is not of [`Self::load_stopping`]. The next three methods panic likewise.
    pub fn stop_next(&self) {
        let Stop { is_wanted, has_come, may_go, has_gone } = self.stop();
        [has_come, may_go, has_gone].iter().for_each(|flag| flag.store(0, Ordering::Relaxed));
        is_wanted.store(1, Ordering::Release);
    }

    /// Whether a program has stopped.
    pub fn has_stopped(&self) -> bool {
        self.stop().has_come.load(Ordering::Acquire) != 0
    }

    /// The stopped program goes on.
    pub fn let_go(&self) {
        self.stop().may_go.store(1, Ordering::Release);
    }

    /// Whether the program, which has ended, stood still until it was let go.
    pub fn has_waited(&self) -> bool {
        self.stop().has_gone.load(Ordering::Acquire) == 0
    }

    /// No key of a dial can be entered any more where this sender's belongs: other dials have all slots.
    pub fn fill_slots_of(&self, sender: SocketAddr, listens: SocketAddr) {
        let tables = self.tables();
        let hash = tables.keys.hash_of(&key_of(sender, listens)).unwrap_or_default();
        fill(tables.dialled.at(hash & (tables.dialled.count() - 1)), hash);
    }

    /// How many keys lead to dials.
    pub fn dialled(&self) -> usize {
        count(&self.tables().dialled)
    }

    /// Ends the session with these two connections: its place is free again.
    ///
    /// # Panics
    /// There is no such session.
    pub fn end(&self, [sender, listens]: [SocketAddr; 2], [backend, client]: [SocketAddr; 2]) {
        let mut tables = self.tables();
        let keys = [key_of(sender, listens), key_of(backend, client)];
        let key_at = |bits: u32| tables.flows.at(bits >> 1).faces[bits as usize & 1].key();
        let bits = tables.keys.find(&keys[0], key_at).unwrap_or_else(|| panic!("no session of {sender}"));
        for (side, key) in (0..).zip(&keys) {
            tables.keys.remove(key, bits | side);
        }
        tables.flows.at(bits >> 1).stage.store(Stage::Free as u32, Ordering::Release);
        // Has the ring forget the places that were taken.
        let _ = tables.places.taken();
        tables.places.lend(bits >> 1);
    }

    /// A counter of [`FULL_COUNTERS`].
    pub fn counter(&self, name: &str) -> Result<u64, AttachError> {
        let index = FULL_COUNTERS.iter().position(|(known, _)| *known == name).unwrap_or(usize::MAX);
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let values =
            self.tables().counters.get(&index, 0).map_err(AttachError::map("reading", "tf_counters"))?;
        Ok(values.iter().sum())
    }

    /// Shows a frame to the program, as it comes in by loopback. Any number of threads may do so at once.
    pub fn comes_in(&self, frame: &[u8]) -> Result<Outcome, AttachError> {
        let mut packet = vec![0; LONGEST];
        // `struct __sk_buff`: the device's number is its eleventh word.
        let mut context = [0_u8; 192];
        context[40..44].copy_from_slice(&LOOPBACK.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut packet),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let program: Result<&SchedClassifier, _> = self.program.shared(NAME).try_into();
        let result = program.and_then(|program| program.test_run(options));
        let result = result.map_err(AttachError::attach(NAME, "BPF_PROG_TEST_RUN"))?;
        packet.truncate(result.data_size_out as usize);
        Ok(Outcome { verdict: result.return_value.cast_signed(), frame: packet })
    }
}

/// Fills the tables that truepeer writes, and those that the programs learn from the kernel's own
/// connections.
fn know(place: &Place, listens: SocketAddr, sender: IpAddr, backend: SocketAddr) -> Result<(), AttachError> {
    const REQUIRE: u32 = 1;
    const MSS: u16 = 1460;
    let mut listeners: HashMap<MapData, RawPort, RawListener> = open!(place, HashMap, "tf_listeners");
    let port = RawPort { port: listens.port().to_be_bytes(), version: 4, unused: 0 };
    let listener = RawListener {
        address: address_of(listens.ip()),
        backend: address_of(backend.ip()),
        backend_port: backend.port().to_be_bytes(),
        group: 0,
        is_any: 0,
        number: 0,
        header_max: 536,
        left_s: 0,
        is_draining: 0,
    };
    listeners.insert(port, listener, 0).map_err(AttachError::map("writing", "tf_listeners"))?;
    let mut rules: LpmTrie<MapData, Address, u32> = open!(place, LpmTrie, "tp_senders");
    rules
        .insert(&Key::new(128, address_of(sender)), REQUIRE, 0)
        .map_err(AttachError::map("writing", "tp_senders"))?;
    let mut senders: HashMap<MapData, Address, RawSender> = open!(place, LruHashMap, "tf_senders");
    let known = RawSender { device: LOOPBACK, own_mss: MSS, unused: 0 };
    senders.insert(address_of(sender), known, 0).map_err(AttachError::map("writing", "tf_senders"))?;
    let mut backends: HashMap<MapData, Endpoint, RawBackend> = open!(place, HashMap, "tf_backends");
    backends
        .insert(endpoint(backend), RawBackend::known(monotonic_ns(), LOOPBACK, MSS), 0)
        .map_err(AttachError::map("writing", "tf_backends"))
}

impl std::fmt::Debug for FullHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FullHarness")
    }
}
