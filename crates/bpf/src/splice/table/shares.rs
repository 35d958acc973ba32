//! Which places of the tables are this process's. Several processes share the tables, so that each finds the
//! addresses of the others' flows; each begins flows in its own shares, and answers for them alone.

use std::ops::Range;
use std::time::Instant;

use super::{Role, Splices, lock};
use crate::AttachError;
use crate::splice::layout::Stage;
use crate::splice::locks::{SHARES, Share};

/// The shares of this process.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Also those that it has released: flows there may still be its own.
    own: Vec<Share>,
    /// An heir's predecessor has some of these.
    awaited: Vec<Share>,
    /// The predecessor has released its shares, and that takes no longer than until the next look.
    is_handed_over: bool,
    /// The last attempt to take a further share found none free.
    is_full_grown: bool,
}

impl Splices {
    /// Takes the shares of processes that have ended, and one without flows. An heir leaves the former alone:
    /// it waits for its predecessor's. No other process starts meanwhile.
    pub(super) fn take_part(&self, as_heir: bool) -> Result<(), AttachError> {
        let mut free = self.locks.take_free();
        let awaited = (0..SHARES).filter(|share| as_heir && !free.contains(share)).collect::<Vec<_>>();
        let mut has_room = false;
        free.retain(|share| {
            let is_kept = if self.has_flows(*share) {
                awaited.is_empty()
            } else {
                !self.places_of(*share).is_empty() && !std::mem::replace(&mut has_room, true)
            };
            if !is_kept {
                self.locks.give(*share);
            }
            is_kept
        });
        if free.is_empty() && awaited.is_empty() {
            return Err(AttachError::TablesTaken);
        }
        lock(&self.shares).awaited = awaited;
        if !free.is_empty() {
            self.keys.begin()?;
            self.own(&free);
        }
        Ok(())
    }

    /// An heir takes its predecessor's shares if it can by now.
    pub fn inherit(&self) {
        if !self.awaits() || !self.locks.start_alone() {
            return;
        }
        let inherited = self.inherited();
        if !inherited.is_empty() {
            // The last owner may have been killed before it wrote a secret. If this fails, no key can be
            // entered, and sessions stay in user space.
            let _ = self.keys.begin();
            self.own(&inherited);
        }
        self.locks.let_others_start();
    }

    fn inherited(&self) -> Vec<Share> {
        let mut shares = lock(&self.shares);
        let awaited = std::mem::take(&mut shares.awaited);
        let (inherited, others): (Vec<_>, Vec<_>) =
            awaited.into_iter().partition(|share| self.locks.take(*share));
        // Those that are left after two looks are other processes'. If the predecessor was killed, this can't
        // be told: whatever is free later is inherited, too.
        if !shares.is_handed_over {
            shares.awaited = others;
        }
        shares.is_handed_over = !inherited.is_empty() && self.locks.have_elder();
        inherited
    }

    /// Whether a predecessor may still have shares.
    pub(crate) fn awaits(&self) -> bool {
        !lock(&self.shares).awaited.is_empty()
    }

    fn own(&self, shares: &[Share]) {
        *lock(&self.role) = Role::Owner;
        self.adopt(shares);
    }

    /// Lets another process have this one's shares. Flows that are not let go yet stay with this one.
    pub fn release(&self) {
        let mut shares = lock(&self.shares);
        *lock(&self.role) = Role::Guest;
        lock(&self.free).clear();
        shares.awaited.clear();
        self.locks.hand_over(&shares.own);
    }

    /// A guest answers for the flows of processes that have ended. No other process starts meanwhile.
    pub(super) fn look_after_orphans(&self) -> Result<(), AttachError> {
        let free = self.locks.take_free();
        self.adopt(&free);
        // Let another process have the shares and their free places.
        lock(&self.free).clear();
        free.iter().for_each(|share| self.locks.give(*share));
        Ok(())
    }

    /// Takes over the flows of another process. Spliced ones go on. Unless that process still lives, the
    /// sockets of earlier stages are gone: these flows are forgotten, and their peers reset if they may wait.
    fn adopt(&self, taken: &[Share]) {
        lock(&self.shares).own.extend(taken);
        let has_elder = self.locks.have_elder();
        // A flow that the elder is just beginning may still take such a place: it rests first.
        let since = has_elder.then(Instant::now);
        let mut unfinished = Vec::new();
        let places: Vec<u32> = taken.iter().flat_map(|share| self.places_of(*share)).collect();
        lock(&self.free).grow(places.len());
        for place in places {
            match self.stage(place) {
                Stage::Free => lock(&self.free).give_back(place, since),
                Stage::Armed | Stage::Tail if has_elder => self.sweep_later(place),
                stage @ (Stage::Armed | Stage::Tail) => unfinished.push((place, stage)),
                Stage::Spliced => lock(&self.adopted).push(place),
                Stage::Closing | Stage::Dead | Stage::Gone => self.sweep_later(place),
            }
        }
        // Behind the free ones: these places rest for a second, and until then none that was given back later
        // can be taken.
        for (place, stage) in unfinished {
            match stage {
                Stage::Tail => self.remove_unattended(place),
                _ => _ = self.remove(place),
            }
        }
    }

    /// Takes one more share, without flows: those of a process that has ended are the next start's. False:
    /// none is to be had.
    pub(super) fn grow(&self) -> bool {
        let mut shares = lock(&self.shares);
        if self.is_guest() || shares.is_full_grown {
            return false;
        }
        let Some(found) = self.find_share(&shares.own) else {
            shares.is_full_grown = true;
            return false;
        };
        shares.own.push(found);
        let has_elder = self.locks.have_elder();
        let mut free = lock(&self.free);
        free.grow(self.places_of(found).len());
        for place in self.places_of(found) {
            if has_elder || self.at(place).was_used() {
                free.give_back(place, Some(Instant::now()));
            } else {
                free.give_unused(place);
            }
        }
        true
    }

    fn find_share(&self, own: &[Share]) -> Option<Share> {
        let others = (0..SHARES).filter(|share| !own.contains(share) && !self.places_of(*share).is_empty());
        let mut free = others.filter(|share| self.locks.take(*share));
        free.find(|share| {
            let has_flows = self.has_flows(*share);
            if has_flows {
                self.locks.give(*share);
            }
            !has_flows
        })
    }

    /// Whether flows of processes that have ended go on, which nobody answers for.
    pub fn orphans_go_on(&self) -> bool {
        let own = lock(&self.shares).own.clone();
        (0..SHARES).filter(|share| !own.contains(share)).any(|share| {
            let is_free = self.locks.take(share);
            let goes_on = |place| matches!(self.stage(place), Stage::Tail | Stage::Spliced);
            let go_on = is_free && self.places_of(share).any(goes_on);
            if is_free {
                self.locks.give(share);
            }
            go_on
        })
    }

    pub(super) fn may_grow_again(&self) {
        lock(&self.shares).is_full_grown = false;
    }

    pub(super) fn own_places(&self) -> Vec<u32> {
        lock(&self.shares).own.iter().flat_map(|share| self.places_of(*share)).collect()
    }

    fn has_flows(&self, share: Share) -> bool {
        self.places_of(share).any(|place| self.stage(place) != Stage::Free)
    }

    fn places_of(&self, share: Share) -> Range<u32> {
        let (all, share) = (self.flows.count(), u32::from(share));
        let size = all.div_ceil(SHARES.into());
        (share * size).min(all)..((share + 1) * size).min(all)
    }
}
