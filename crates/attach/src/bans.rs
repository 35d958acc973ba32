//! Sets, ends and lists the bans of attached ports, in each network namespace of this machine.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use rustix::process::geteuid;
use truepeer_bpf::{BanTable, Place, can_look, find_pins};
use truepeer_policy::{Ban, BannedPrefix, Lifted};
use truepeer_sys::tell;

use crate::all;

/// The tables of every network namespace in which something is attached.
pub struct AttachedBans(Vec<(Place, BanTable)>);

impl AttachedBans {
    /// Finds them. Whoever may not look finds none.
    ///
    /// # Errors
    /// One can't be opened.
    pub fn find(pins: Option<&Path>) -> Result<Self> {
        let mut tables = Vec::new();
        for place in places(pins)?.unwrap_or_default() {
            if let Some(table) = BanTable::open(&place)? {
                tables.push((place, table));
            }
        }
        Ok(Self(tables))
    }

    /// Whether nothing is attached, as far as can be seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bans in all of them, and ends what is open. A failure in one, whose container may just have ended,
    /// keeps no other from it. Returns the fewest that any of them set: a ban that ends later stays.
    ///
    /// # Errors
    /// The kernel's first one.
    pub fn set(&mut self, bans: &[Ban], now: u64) -> Result<usize> {
        let mut set = Ok(bans.len());
        for (place, table) in &mut self.0 {
            match table.set(bans, now) {
                Ok(here) => set = set.map(|fewest| fewest.min(here)),
                Err(failure) => {
                    set = set.and(Err(failure.into()));
                    continue;
                }
            }
            // The bans are in force here: go on with the other network namespaces.
            if let Err(error) = cut(place, table) {
                tell!("warning: connections that are open go on: {error:#}");
            }
        }
        set
    }

    /// Lifts the bans of exactly these prefixes. Returns the most that any of them had.
    ///
    /// # Errors
    /// The kernel's.
    pub fn lift(&mut self, clients: &[BannedPrefix], which: Lifted<'_>) -> Result<usize> {
        let mut most = 0;
        for (_, table) in &mut self.0 {
            most = most.max(table.lift(clients, which)?);
        }
        Ok(most)
    }

    /// Lifts all. Returns the most that any of them had.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear(&mut self) -> Result<usize> {
        let mut most = 0;
        for (_, table) in &mut self.0 {
            most = most.max(table.clear()?);
        }
        Ok(most)
    }

    /// All of them, each once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn list(&mut self, now: u64) -> Result<Vec<Ban>> {
        let mut all = BTreeMap::new();
        for (_, table) in &mut self.0 {
            all.extend(table.list(now)?.into_iter().map(|ban| ((ban.clients, ban.port), ban)));
        }
        Ok(all.into_values().collect())
    }
}

/// Where something is attached. `None`: this user may not look.
pub(crate) fn places(pins: Option<&Path>) -> Result<Option<Vec<Place>>> {
    if pins.is_none() && !can_look() {
        return Ok(None);
    }
    match Place::all(&pins.map_or_else(find_pins, Path::to_owned)) {
        Err(_) if !geteuid().is_root() => Ok(None),
        places => Ok(Some(places?)),
    }
}

/// In the namespace: the kernel lists its connections there.
fn cut(place: &Place, table: &BanTable) -> Result<()> {
    if place.is_here()? {
        table.cut()?;
        return Ok(());
    }
    all::enter(table.netns()?)?.run(|| table.cut())??;
    Ok(())
}
