//! Devices that come after the start.

use super::Splices;
use super::locks::Locks;
use crate::links::{self, SPLICE_IN, SPLICE_OUT};
use crate::{AttachError, Device, Place};

/// Attaches the programs to devices that come later, also in a process that was forked from the owner of the
/// tables and holds nothing but its user. (From Linux 6.6 on, attaching a program takes no capability.)
///
/// Every process that shares the tables has one. They attach the programs of the last start: programs of two
/// starts on one way would take each other's copies for damaged segments.
#[derive(Debug)]
pub struct Follower {
    place: Place,
    /// Of the tables.
    identity: (u64, u64),
}

/// The result of [`Follower::attach`].
#[derive(Debug)]
pub enum Followed {
    /// These have got the programs, and the first failure.
    Attached(Vec<String>, Option<AttachError>),
    /// Another process starts, follows or removes the tables: look again.
    Busy,
}

impl Splices {
    /// For these tables; `None`: they are gone.
    pub fn follower(&self) -> Option<Follower> {
        let place = self.place().clone();
        place.identity().map(|identity| Follower { place, identity })
    }
}

impl Follower {
    /// Attaches the programs to those of these devices that lack them. If somebody has removed the tables, it
    /// does nothing.
    ///
    /// # Errors
    /// The programs can't be opened.
    pub fn attach(&self, devices: &[Device]) -> Result<Followed, AttachError> {
        if self.place.identity() != Some(self.identity) {
            return Ok(Followed::Attached(Vec::new(), None));
        }
        let Some(_lock) = Locks::of_tables(&self.place, self.identity) else { return Ok(Followed::Busy) };
        // splice_out first, as at the start.
        let (attached, failure) = links::attach_pinned(&self.place, &[SPLICE_OUT, SPLICE_IN], devices)?;
        Ok(Followed::Attached(attached, failure))
    }
}
