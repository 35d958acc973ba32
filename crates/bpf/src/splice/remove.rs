//! Removes programs and tables once no process and no flow uses them.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::layout::{SPLICE_LAYOUT, Spliced, Stage};
use super::locks::Locks;
use super::mapped::Mapped;
use super::table::Splices;
use crate::{AttachError, Place, links};

/// Removes the programs and tables at `pins` that nobody uses. False: there are none, another process has
/// them, or sessions go on.
///
/// # Errors
/// The kernel refused a step.
pub fn remove_unused(pins: &Path) -> Result<bool, AttachError> {
    let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
    if !place.path().exists() {
        return Ok(false);
    }
    // If the table is missing, an attachment was interrupted.
    let flows = Mapped::<Spliced>::open(&place, "ts_flows").ok();
    remove(&place, || flows.as_ref().is_some_and(goes_on))
}

impl Splices {
    /// The same in a process that was forked from the owner, when that has ended.
    ///
    /// # Errors
    /// The kernel refused a step.
    pub fn remove_unused(&self) -> Result<bool, AttachError> {
        remove(self.place(), || self.go_on())
    }

    /// Whether any session goes on in the kernel.
    pub fn go_on(&self) -> bool {
        goes_on(self.flows())
    }
}

/// Whether a session goes on in the kernel. An armed one ends with its sockets. A cut one does not: the next
/// owner has to reset both peers.
fn goes_on(flows: &Mapped<Spliced>) -> bool {
    let stage = |place| Stage::of(flows.at(place).stage.load(Ordering::Acquire));
    (0..flows.count()).any(|place| matches!(stage(place), Stage::Tail | Stage::Spliced))
}

fn remove(place: &Place, goes_on: impl Fn() -> bool) -> Result<bool, AttachError> {
    let locks = Locks::open(place)?;
    if !locks.start_alone() || !locks.are_alone() || goes_on() {
        return Ok(false);
    }
    if !links::has_tcx() {
        links::detach_clsact(&links::OF_SPLICE);
    }
    place.remove_aside().map(|()| true)
}
