//! The tables of spliced flows, and which of their places are free.

use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData, MapError, PerCpuArray, SkStorage};

use super::attach::{Attached, attach};
use super::flow::Flow;
use super::layout::{Spliced, Stage, key_of};
use super::mapped::Mapped;
use crate::layout::FlowKey;
use crate::{AttachError, Device, SPLICE_COUNTERS};

/// A place is used again only so long after: no program that still runs knows it then.
const REST: Duration = Duration::from_secs(1);

/// A flow whose peers have both vanished never ends by itself.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// One connection of a session.
#[derive(Debug, Clone, Copy)]
pub struct Side<'s> {
    /// Our socket.
    pub socket: BorrowedFd<'s>,
    /// Its peer's address.
    pub peer: SocketAddr,
    /// Its own.
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
    /// The kernel.
    #[error("table {map} can't be written")]
    Table {
        /// Which.
        map: &'static str,
        /// Why.
        source: Box<MapError>,
    },
}

/// What a sweep has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Flows that were let go and go on.
    pub open: usize,
    /// Flows that have ended since the last sweep.
    pub ended: usize,
}

/// The spliced flows of a network namespace.
pub struct Splices {
    flows: Mapped,
    keys: Mutex<HashMap<MapData, FlowKey, u32>>,
    sockets: Mutex<SkStorage<MapData, u32>>,
    counters: PerCpuArray<MapData, u64>,
    free: Mutex<VecDeque<(u32, Option<Instant>)>>,
    let_go: Mutex<Vec<LetGo>>,
    _lock: File,
}

/// A flow without sockets, as the last sweep saw it.
struct LetGo {
    place: u32,
    segments: u64,
    quiet_since: Instant,
}

impl Splices {
    /// Attaches the programs to these devices, with tables for so many flows at `pins`. Flows of an earlier process go on.
    ///
    /// # Errors
    /// If the kernel refuses a step; if another process uses the tables.
    pub fn attach(pins: &Path, devices: &[Device], flows: NonZeroU32) -> Result<Arc<Self>, AttachError> {
        let Attached { place, lock } = attach(pins, devices, flows)?;
        let open = |name: &'static str| {
            MapData::from_pin(place.maps().join(name)).map_err(AttachError::map("opening", name))
        };
        let table = open("ts_flows")?;
        let count = table.info().map_err(AttachError::map("reading", "ts_flows"))?.max_entries();
        let fd = table.fd();
        let flows = Mapped::map(fd, count as usize).map_err(AttachError::file("mmap", "ts_flows"))?;
        let keys =
            Map::HashMap(open("ts_keys")?).try_into().map_err(AttachError::map("opening", "ts_keys"))?;
        let sockets = Map::SkStorage(open("ts_sockets")?)
            .try_into()
            .map_err(AttachError::map("opening", "ts_sockets"))?;
        let counters = Map::PerCpuArray(open("ts_counters")?)
            .try_into()
            .map_err(AttachError::map("opening", "ts_counters"))?;
        let splices = Self {
            flows,
            keys: Mutex::new(keys),
            sockets: Mutex::new(sockets),
            counters,
            free: Mutex::default(),
            let_go: Mutex::default(),
            _lock: lock,
        };
        splices.adopt(count);
        Ok(Arc::new(splices))
    }

    /// Flows of a process that has ended: those it had let go go on; of others the sockets are gone.
    fn adopt(&self, count: u32) {
        for place in 0..count {
            match self.stage(place) {
                Stage::Free => lock(&self.free).push_back((place, None)),
                Stage::Armed | Stage::Tail => self.forget(place),
                Stage::Spliced | Stage::Closing | Stage::Dead | Stage::Gone => self.let_go(place),
            }
        }
    }

    /// Begins a flow of the session whose downstream and upstream connections these are.
    ///
    /// # Errors
    /// See [`ArmError`]. Then nothing was begun.
    pub fn arm(self: &Arc<Self>, sides: [Side<'_>; 2]) -> Result<Flow, ArmError> {
        let place = self.take_place().ok_or(ArmError::Full)?;
        let keys = sides.map(|side| key_of(side.peer, side.own));
        let flow = self.at(place);
        for ((face, side), key) in flow.faces.iter().zip(&sides).zip(&keys) {
            face.begin(key, side.peer_scale, side.own_scale, side.has_timestamps);
        }
        flow.stage.store(Stage::Armed as u32, Ordering::Release);
        match self.insert(place, &sides, &keys) {
            Ok(()) => Ok(Flow::new(Arc::clone(self), place)),
            Err(error) => {
                flow.stage.store(Stage::Free as u32, Ordering::Release);
                self.give_back(place);
                Err(error)
            }
        }
    }

    fn insert(&self, place: u32, sides: &[Side<'_>; 2], keys: &[FlowKey; 2]) -> Result<(), ArmError> {
        const NO_EXIST: u64 = 1;
        let value = |side: usize| place << 1 | u32::from(side == 1);
        let mut table = lock(&self.keys);
        table.insert(keys[0], value(0), NO_EXIST).map_err(in_use)?;
        let second = table.insert(keys[1], value(1), NO_EXIST).map_err(in_use);
        let mut sockets = lock(&self.sockets);
        let known = second.and_then(|()| {
            (0..2).try_for_each(|side| {
                let told = sockets.insert(&sides[side].socket.as_raw_fd(), value(side), 0);
                told.map_err(|error| ArmError::Table { map: "ts_sockets", source: Box::new(error) })
            })
        });
        if let Err(error) = known {
            // What is not there need not go. The second key may be another flow's.
            let _ = table.remove(&keys[0]);
            if !matches!(error, ArmError::AddressesInUse) {
                let _ = table.remove(&keys[1]);
            }
            return Err(error);
        }
        Ok(())
    }

    /// Looks at the flows that were let go: those that have ended, and have been quiet for so long, make room.
    pub fn sweep(&self, now: Instant, linger: Duration) -> Swept {
        let mut let_go = lock(&self.let_go);
        let before = let_go.len();
        let_go.retain_mut(|entry| {
            let flow = self.at(entry.place);
            let segments = flow.faces.iter().map(|face| face.segments.load(Ordering::Relaxed)).sum();
            if segments != entry.segments {
                (entry.segments, entry.quiet_since) = (segments, now);
            }
            let is_quiet = now.saturating_duration_since(entry.quiet_since) >= linger;
            match self.stage(entry.place) {
                Stage::Closing | Stage::Dead if is_quiet => self.forget(entry.place),
                Stage::Spliced if now.saturating_duration_since(entry.quiet_since) >= ABANDONED => {
                    self.forget(entry.place);
                }
                // Its keys are removed, and may be another flow's by now.
                Stage::Gone => self.put_back(entry.place),
                _ => return true,
            }
            false
        });
        Swept { open: let_go.len(), ended: before - let_go.len() }
    }

    /// The flows that were let go and go on, for tests.
    pub fn unended(&self) -> Vec<String> {
        lock(&self.let_go).iter().map(|entry| format!("{:?}", self.at(entry.place))).collect()
    }

    /// A counter of [`SPLICE_COUNTERS`] since the tables were made.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, AttachError> {
        let read = |index: usize| -> Result<u64, MapError> {
            Ok(self.counters.get(&u32::try_from(index).unwrap_or(u32::MAX), 0)?.iter().sum())
        };
        let all = SPLICE_COUNTERS.iter().enumerate().map(|(index, (name, _))| Ok((*name, read(index)?)));
        all.collect::<Result<_, _>>().map_err(AttachError::map("reading", "ts_counters"))
    }

    pub(super) fn at(&self, place: u32) -> &Spliced {
        self.flows.at(place)
    }

    pub(super) fn stage(&self, place: u32) -> Stage {
        Stage::of(self.at(place).stage.load(Ordering::Acquire))
    }

    /// Removes the keys, then the flow: from then on its packets are the kernel's.
    pub(super) fn forget(&self, place: u32) {
        let mut keys = lock(&self.keys);
        for face in &self.at(place).faces {
            // Gone already: as it should be.
            let _ = keys.remove(&face.key());
        }
        drop(keys);
        self.put_back(place);
    }

    /// The flow's sockets are closed; it is swept from now on.
    pub(super) fn let_go(&self, place: u32) {
        lock(&self.let_go).push(LetGo { place, segments: 0, quiet_since: Instant::now() });
    }

    fn put_back(&self, place: u32) {
        self.at(place).stage.store(Stage::Free as u32, Ordering::Release);
        self.give_back(place);
    }

    fn take_place(&self) -> Option<u32> {
        let mut free = lock(&self.free);
        let (_, since) = free.front()?;
        if since.is_some_and(|since| since.elapsed() < REST) {
            return None;
        }
        free.pop_front().map(|(place, _)| place)
    }

    fn give_back(&self, place: u32) {
        lock(&self.free).push_back((place, Some(Instant::now())));
    }
}

fn in_use(error: MapError) -> ArmError {
    const EEXIST: i32 = 17;
    match &error {
        MapError::SyscallError(failed) if failed.io_error.raw_os_error() == Some(EEXIST) => {
            ArmError::AddressesInUse
        }
        _ => ArmError::Table { map: "ts_keys", source: Box::new(error) },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
