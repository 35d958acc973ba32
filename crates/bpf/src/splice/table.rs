//! The tables of spliced flows, and which of their places are free.

mod free;
mod shares;
mod sweep;
mod ways;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{Map, MapData, MapError, PerCpuArray, SkStorage};
use rustix::time::{ClockId, clock_gettime};

use self::free::FreePlaces;
use self::shares::Shares;
pub use self::sweep::Swept;
use self::sweep::Unwatched;
pub use self::ways::Way;
use super::attach::attach;
use super::keys::{Keys, NotEntered};
use super::layout::{SPLICE_LAYOUT, Spliced, Stage, key_of};
use super::locks::Locks;
use super::mapped::Mapped;
use super::peers::{Question, Unattended};
use crate::layout::FlowKey;
use crate::{AttachError, Device, Place, SPLICE_COUNTERS};

/// One connection of a session.
#[derive(Debug, Clone, Copy)]
pub struct Side<'s> {
    /// Our socket.
    pub socket: BorrowedFd<'s>,
    /// Its peer's address.
    pub peer: SocketAddr,
    /// The socket's own address.
    pub own: SocketAddr,
    /// The window scale of what the peer says.
    pub peer_scale: u8,
    /// The window scale of what it is told.
    pub own_scale: u8,
    /// Both ends send timestamps.
    pub has_timestamps: bool,
}

/// Why a session's flow can't begin.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// As many flows as the table holds.
    #[error("the table of spliced flows is full")]
    Full,
    /// A flow of the same addresses still ends.
    #[error("another flow has these addresses")]
    AddressesInUse,
    /// The session's peer is another session's socket on this host.
    #[error("its peer is another spliced session of this host")]
    Chained,
    /// The kernel.
    #[error("table {map} can't be written")]
    Table {
        /// Which.
        map: &'static str,
        /// Why.
        source: Box<MapError>,
    },
}

/// The spliced flows of a network namespace.
pub struct Splices {
    place: Place,
    flows: Mapped<Spliced>,
    keys: Keys,
    sockets: Mutex<SkStorage<MapData, u32>>,
    counters: PerCpuArray<MapData, u64>,
    shares: Mutex<Shares>,
    free: Mutex<FreePlaces>,
    unwatched: Mutex<Vec<Unwatched>>,
    /// Flows that were forgotten though their peers may live: see [`Splices::unattended`].
    unattended: Mutex<Vec<(u32, [Unattended; 2])>>,
    /// See [`Splices::adopted`].
    adopted: Mutex<Vec<u32>>,
    /// See [`Splices::questions`].
    questions: Mutex<Vec<Question>>,
    locks: Locks,
    role: Mutex<Role>,
}

/// How many entries of the tables are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// Flows that are not free.
    pub places: usize,
    /// Keys that lead to flows: two for each flow whose connections exist.
    pub keys: usize,
}

/// The role of this process, which decides what it may do with the tables. Several processes may be owners,
/// each of [a share](super::locks::Share) at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It begins flows and gives their places back.
    Owner,
    /// It [visits](Splices::visit) them, has no share yet, or has [released](Splices::release) its shares.
    Guest,
}

impl Splices {
    /// Attaches the programs to these devices, with tables for so many flows at `pins`. Flows of processes
    /// that have ended go on: this one answers for them. Those of processes that run are left alone.
    ///
    /// # Errors
    /// If the kernel refuses a step; if other processes have all shares of the tables.
    pub fn attach(pins: &Path, devices: &[Device], flows: NonZeroU32) -> Result<Arc<Self>, AttachError> {
        Self::start(pins, devices, flows, false)
    }

    /// Likewise, for a process that takes over from another one. It owns that one's shares once they are
    /// [released](Splices::release) ([`Splices::inherit`]).
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub fn attach_as_heir(
        pins: &Path,
        devices: &[Device],
        flows: NonZeroU32,
    ) -> Result<Arc<Self>, AttachError> {
        Self::start(pins, devices, flows, true)
    }

    fn start(
        pins: &Path,
        devices: &[Device],
        flows: NonZeroU32,
        as_heir: bool,
    ) -> Result<Arc<Self>, AttachError> {
        let (place, locks) = attach(pins, devices, flows)?;
        let splices = Self::open(&place, locks)?;
        splices.take_part(as_heir)?;
        splices.locks.let_others_start();
        Ok(Arc::new(splices))
    }

    /// Opens the tables of an earlier or another process at `pins`, if there are any. A guest begins no flow:
    /// it asks for [addresses](Splices::are_in_use), and removes the keys of flows that end.
    ///
    /// # Errors
    /// If they can't be opened.
    pub fn visit(pins: &Path) -> Result<Option<Arc<Self>>, AttachError> {
        let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
        let directory = place.path();
        if !directory.exists() {
            return Ok(None);
        }
        let splices = Self::open(&place, Locks::open(&place)?)?;
        if splices.locks.start_alone() {
            splices.look_after_orphans()?;
            splices.locks.let_others_start();
        }
        Ok(Some(Arc::new(splices)))
    }

    /// How much of the tables at `pins` is in use, for tests. It changes nothing. `None`: there are no
    /// tables.
    ///
    /// # Errors
    /// If they can't be opened.
    pub fn in_use(pins: &Path) -> Result<Option<InUse>, AttachError> {
        let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
        if !place.path().exists() {
            return Ok(None);
        }
        let flows: Mapped<Spliced> = Mapped::open(&place, "ts_flows")?;
        let is_taken = |place: &u32| Stage::of(flows.at(*place).stage.load(Ordering::Acquire)) != Stage::Free;
        let places = (0..flows.count()).filter(is_taken).count();
        Ok(Some(InUse { places, keys: Keys::open(&place)?.count() }))
    }

    /// Whether this process may not begin flows: it only [visits](Splices::visit), or has no share.
    pub fn is_guest(&self) -> bool {
        *lock(&self.role) != Role::Owner
    }

    fn open(place: &Place, locks: Locks) -> Result<Self, AttachError> {
        let open = |name: &'static str| {
            MapData::from_pin(place.maps().join(name)).map_err(AttachError::map("opening", name))
        };
        let flows: Mapped<Spliced> = Mapped::open(place, "ts_flows")?;
        let keys = Keys::open(place)?;
        let sockets = Map::SkStorage(open("ts_sockets")?)
            .try_into()
            .map_err(AttachError::map("opening", "ts_sockets"))?;
        let counters = Map::PerCpuArray(open("ts_counters")?)
            .try_into()
            .map_err(AttachError::map("opening", "ts_counters"))?;
        Ok(Self {
            place: place.clone(),
            shares: Mutex::new(Shares::default()),
            free: Mutex::new(FreePlaces::default()),
            flows,
            keys,
            sockets: Mutex::new(sockets),
            counters,
            unwatched: Mutex::default(),
            unattended: Mutex::default(),
            adopted: Mutex::default(),
            questions: Mutex::default(),
            locks,
            role: Mutex::new(Role::Guest),
        })
    }

    pub(super) fn take_adopted(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.adopted))
    }

    pub(super) fn take_unattended(&self) -> Vec<(u32, [Unattended; 2])> {
        std::mem::take(&mut *lock(&self.unattended))
    }

    /// Whether a spliced connection has these addresses. One that has ended frees them, as it does for an
    /// incoming SYN.
    pub fn are_in_use(&self, peer: SocketAddr, own: SocketAddr) -> bool {
        let found = self.keys.find(&key_of(peer, own), |bits| self.key_at(bits));
        found.is_some_and(|bits| self.make_room(bits >> 1))
    }

    /// Whether the flow goes on. Otherwise its keys are removed; its place stays taken until its watcher lets
    /// it go.
    fn make_room(&self, place: u32) -> bool {
        let stage = &self.at(place).stage;
        let ended = [Stage::Closing, Stage::Dead].map(|stage| stage as u32);
        let now = stage.load(Ordering::Acquire);
        if !ended.contains(&now) {
            return [Stage::Armed, Stage::Tail, Stage::Spliced].contains(&Stage::of(now));
        }
        if stage.compare_exchange(now, Stage::Gone as u32, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true;
        }
        self.remove_keys(place);
        false
    }

    pub(super) fn insert(
        &self,
        place: u32,
        sides: &[Side<'_>; 2],
        keys: &[FlowKey; 2],
    ) -> Result<(), ArmError> {
        let value = |side: usize| place << 1 | u32::from(side == 1);
        let key_at = |bits| self.key_at(bits);
        self.keys.enter(&keys[0], value(0), key_at)?;
        if let Err(failed) = self.keys.enter(&keys[1], value(1), key_at) {
            self.keys.remove(&keys[0], value(0));
            return Err(failed.into());
        }
        // Is the peer another session of this host? splice_in would translate from loopback to loopback, and
        // such segments don't come in again: the other session would never see them. Look only after both
        // keys are entered: of two sessions that begin at once, at least one sees the other.
        if keys.iter().any(|key| self.keys.find(&turned(key), key_at).is_some()) {
            self.remove_keys(place);
            return Err(ArmError::Chained);
        }
        let mut sockets = lock(&self.sockets);
        for (side, Side { socket, .. }) in sides.iter().enumerate() {
            if let Err(error) = sockets.insert(&socket.as_raw_fd(), value(side), 0) {
                self.remove_keys(place);
                return Err(ArmError::Table { map: "ts_sockets", source: Box::new(error) });
            }
        }
        Ok(())
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn flows(&self) -> &Mapped<Spliced> {
        &self.flows
    }

    /// The key of a connection, by the bits in its slot.
    fn key_at(&self, bits: u32) -> FlowKey {
        self.at(bits >> 1).faces[bits as usize & 1].key()
    }

    /// A counter of [`SPLICE_COUNTERS`] since the tables were made.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, AttachError> {
        let read = |index: usize| -> Result<u64, MapError> {
            Ok(self.counters.get(&u32::try_from(index).unwrap_or(u32::MAX), 0)?.iter().sum())
        };
        let all = SPLICE_COUNTERS.iter().enumerate().map(|(index, (name, _))| Ok((*name, read(index)?)));
        all.collect::<Result<_, _>>().map_err(AttachError::map("reading", "ts_counters"))
    }

    pub(crate) fn at(&self, place: u32) -> &Spliced {
        self.flows.at(place)
    }

    pub(crate) fn stage(&self, place: u32) -> Stage {
        Stage::of(self.at(place).stage.load(Ordering::Acquire))
    }

    fn remove_keys(&self, place: u32) {
        for (side, face) in (0_u32..).zip(&self.at(place).faces) {
            self.keys.remove(&face.key(), place << 1 | side);
        }
    }

    fn put_back(&self, place: u32) {
        self.at(place).stage.store(Stage::Free as u32, Ordering::Release);
        self.give_back(place);
    }

    pub(crate) fn take_place(&self) -> Option<u32> {
        loop {
            if lock(&self.free).is_filling() {
                self.grow();
            }
            let taken = lock(&self.free).take(Instant::now());
            let Some(place) = taken else {
                if self.grow() {
                    continue;
                }
                return None;
            };
            if self.stage(place) == Stage::Free {
                return Some(place);
            }
            // A process that has handed over has begun a flow there.
            self.sweep_later(place);
        }
    }

    /// A grace period has passed since `before`, so places that were given back before that may be used
    /// again.
    pub fn have_rested(&self, before: Instant) {
        lock(&self.free).have_rested(before);
    }

    pub(crate) fn give_back(&self, place: u32) {
        lock(&self.free).give_back(place, Some(Instant::now()));
    }
}

/// The key of the connection's other end.
fn turned(key: &FlowKey) -> FlowKey {
    FlowKey { remote: key.local, local: key.remote, remote_port: key.local_port, local_port: key.remote_port }
}

/// The moment `age` ago, in nanoseconds since boot.
pub(crate) fn boot_ns(age: Duration) -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default());
    u64::try_from(now.saturating_sub(age).as_nanos()).unwrap_or(u64::MAX)
}

/// The time since that moment. 0 stands for an unknown one.
pub(super) fn age_of(boot_moment: u64) -> Duration {
    if boot_moment == 0 {
        return Duration::ZERO;
    }
    Duration::from_nanos(boot_ns(Duration::ZERO).saturating_sub(boot_moment))
}

impl From<NotEntered> for ArmError {
    fn from(why: NotEntered) -> Self {
        match why {
            NotEntered::Taken => Self::AddressesInUse,
            NotEntered::NoRoom => Self::Full,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
