//! A pod's state, from which its condition and events follow.

use crate::plan::{Actual, Want, description};
use crate::processes::Place;
use crate::statuses::{State, StatusRow};

use super::Entry;

impl Entry {
    pub(in crate::node) fn line(&self, max: usize) -> StatusRow {
        let netns = match &self.actual {
            Actual::Attached { netns, .. } | Actual::Other { netns } => Some(*netns),
            Actual::Unknown | Actual::Nothing => None,
        };
        StatusRow { name: self.desired.name.clone(), state: self.state(max), netns }
    }

    fn state(&self, max: usize) -> State {
        let attached = match &self.actual {
            Actual::Attached { netns, rules } => Some(description(rules, *netns)),
            // Without what an agent before this one did not follow.
            Actual::Unknown => self.claim.as_ref().map(|claim| {
                claim.description.split("; not followed: ").next().unwrap_or_default().to_owned()
            }),
            Actual::Other { .. } => Some(self.other.description.clone()),
            Actual::Nothing => None,
        };
        match (self.want(), attached) {
            (Want::Unclear(why), kept) => {
                State::Refused { why: why.clone(), kept: kept.filter(|kept| self.serves(kept)) }
            }
            (Want::Forbidden(why), None) => State::Refused { why: why.clone(), kept: None },
            (Want::Nothing, None) => State::Idle,
            (Want::Nothing, Some(description)) => State::Detaching { description, why: None },
            (Want::Forbidden(why), Some(description)) => {
                State::Detaching { description, why: Some(why.clone()) }
            }
            (Want::Attach(_), _) if self.is_without_room => State::NoRoom { max },
            (Want::Attach(_), attached) => self.state_of_attach(attached.filter(|claim| self.serves(claim))),
        }
    }

    /// `serving`: a pod stays ready while earlier rules serve it, until the new ones do.
    fn state_of_attach(&self, serving: Option<String>) -> State {
        match (&self.failure, serving) {
            (Some(why), kept) => State::Failed { why: why.clone(), kept },
            (None, Some(description)) => State::Attached { description, warnings: self.warnings.clone() },
            (None, None) => State::Waiting(self.waits_for()),
        }
    }

    /// Whether what is described is in the kernel, as far as is known: the sandbox has not ended, and is no
    /// other.
    fn serves(&self, description: &str) -> bool {
        let is_here = |place: &Place| description.contains(&format!("; netns {}; ", place.netns));
        let is_attached = match self.actual {
            Actual::Attached { .. } => true,
            Actual::Unknown => self.is_claimed(),
            // Other rules than the wanted ones are attached. They count if the pod was called attached
            // before, or if its annotation is wrong, because then they stay.
            Actual::Other { .. } => {
                self.other.serves && (self.is_claimed() || matches!(self.want(), Want::Unclear(_)))
            }
            Actual::Nothing => false,
        };
        is_attached && !self.is_lost() && self.place.as_ref().is_none_or(is_here)
    }

    fn waits_for(&self) -> &'static str {
        match (&self.place, self.has_process) {
            (None, false) => "no process in a network namespace of its own yet",
            (None, true) => "no address besides the loopback's yet",
            (Some(_), _) => "being attached",
        }
    }
}
