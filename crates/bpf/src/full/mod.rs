//! Sessions that the kernel makes by itself: handshake, header and the connection to the backend
//! (`c/offload/full_*`). Such a session begins as a spliced flow. The steps are in docs/internals/splice.md,
//! *All in the kernel*.

pub(crate) mod begun;
mod counters;
pub(crate) mod layout;
mod listeners;
pub(crate) mod places;
pub(crate) mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{Array, HashMap, MapData, PerCpuArray};

pub use self::begun::Begun;
pub use self::counters::FULL_COUNTERS;
use self::layout::{Endpoint, RawBackend, RawListener, RawPort};
pub use self::listeners::{Served, Unspoken};
use self::places::LentPlaces;
use crate::layout::Address;
use crate::{AttachError, Device, Splices, links};

/// The programs and tables. Dropping this detaches the programs: sessions that have begun go on, and truepeer
/// accepts all new connections.
pub struct Full {
    splices: Arc<Splices>,
    place: crate::Place,
    tables: Mutex<Tables>,
    counters: PerCpuArray<MapData, u64>,
    /// Places of the table of flows that the programs may use.
    lent: Arc<Mutex<Lent>>,
}

struct Tables {
    listeners: HashMap<MapData, RawPort, RawListener>,
    backends: HashMap<MapData, Endpoint, RawBackend>,
    senders: LpmTrie<MapData, Address, u32>,
    claims: LpmTrie<MapData, Address, u32>,
    denied: LpmTrie<MapData, Address, u32>,
    /// The number of the listener that has each group of the lists.
    groups: Vec<Option<u16>>,
    /// An heir's listeners, until it has the tables.
    waiting: BTreeMap<u16, Served>,
}

struct Lent {
    ring: LentPlaces,
    looked: Array<MapData, u64>,
    /// Places that programs have taken and that have no session yet, and when truepeer saw that.
    taken: Vec<(u32, Instant)>,
    state: Lending,
}

/// Whether places are lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lending {
    /// This process is an heir. Another process still lends places.
    NotYet,
    /// This process lends places.
    Goes,
    /// Another process may have the places ([`Full::release`]).
    IsOver,
}

impl Full {
    /// Attaches the programs to these devices, beside those of `splices`, which are at `pins`. They learn the
    /// way to a backend from truepeer's connections. They ignore connections from this host's own addresses,
    /// because any program can make those.
    ///
    /// An heir's programs go on for the process that still serves, until it has [released](Full::release) the
    /// tables, or is gone.
    ///
    /// # Errors
    /// If the kernel refuses a step, or lacks what is needed (Linux 6.9).
    pub fn attach(
        splices: &Arc<Splices>,
        pins: &Path,
        devices: &[Device],
        own_addresses: &BTreeSet<IpAddr>,
    ) -> Result<Self, AttachError> {
        let may = splices.may_make_sessions();
        let is_heir = !may && splices.awaits();
        if !may && !is_heir {
            return Err(AttachError::OtherMakes);
        }
        let (place, maps) = programs::attach(pins, devices, is_heir)?;
        let programs::Maps { listeners, backends, senders, claims, denied, places, looked, counters } = maps;
        let groups = vec![None; listeners::OWN_ADDRESSES.into()];
        let waiting = BTreeMap::new();
        let state = if is_heir { Lending::NotYet } else { Lending::Goes };
        let lent = Arc::new(Mutex::new(Lent { ring: places, looked, taken: Vec::new(), state }));
        let full = Self {
            splices: Arc::clone(splices),
            place,
            tables: Mutex::new(Tables { listeners, backends, senders, claims, denied, groups, waiting }),
            counters,
            lent: Arc::clone(&lent),
        };
        full.tables().set_own_addresses(own_addresses)?;
        if is_heir {
            // Programs begin flows at the places that they have taken already. These flows are adopted.
            splices.before_adopting(move || _ = lock(&lent).ring.take_back());
        } else {
            full.lend()?;
        }
        Ok(full)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        lock(&self.lent)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        // In every other state the programs and tables there may be another process's.
        if self.lent().state == Lending::Goes {
            // If it fails, the programs stay and do nothing: nobody looks at them any more.
            let _ = links::detach_full(&self.place);
        }
    }
}

fn lock(lent: &Mutex<Lent>) -> MutexGuard<'_, Lent> {
    lent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Full")
    }
}
