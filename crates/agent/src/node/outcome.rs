//! Orders to the driver, and their outcomes.

use std::time::Duration;

use crate::in_force;
use crate::plan::{Key, Step};
use crate::processes::Place;
use crate::rules::Rules;
use crate::truepeer::Status;

/// A place, and whether the network plugin is through with it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) has_address: bool,
}

/// A step to take.
#[derive(Debug, Clone)]
pub(super) struct Started {
    pub(super) key: Key,
    pub(super) number: u64,
    pub(super) step: Step,
    pub(super) place: Place,
}

/// The end of a step.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) key: Key,
    pub(super) number: u64,
    pub(super) place: Place,
    pub(super) took: Duration,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Attached {
        rules: Rules,
        warnings: Vec<String>,
    },
    Looked(Seen),
    Detached,
    /// The process has ended meanwhile.
    Ended,
    Failed {
        step: &'static str,
        why: String,
    },
}

/// How the rules in the kernel differ from the wanted rules.
#[derive(Debug)]
pub(super) enum Seen {
    Same(Rules),
    Other { description: String, difference: String },
    Nothing,
}

impl Seen {
    pub(super) fn of(status: &Status, wanted: Option<Rules>) -> Self {
        if !status.attached {
            return Self::Nothing;
        }
        let difference = wanted.as_ref().map(|rules| in_force::difference(status, rules));
        match (wanted, difference) {
            (Some(rules), Some(None)) => Self::Same(rules),
            (_, difference) => Self::Other {
                description: in_force::shown(status),
                difference: difference.flatten().unwrap_or_else(|| "no rules are wanted".to_owned()),
            },
        }
    }
}
