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

/// The name of a step that asks the kernel.
pub(super) const LOOK: &str = "look";

/// How the rules in the kernel differ from the wanted rules.
#[derive(Debug)]
pub(super) enum Seen {
    Same(Rules),
    Other {
        description: String,
        /// New connections are served by it: it is not being detached.
        serves: bool,
        difference: String,
    },
    Nothing,
}

impl Outcome {
    /// `told`: the kernel's answer, or why there is none. If the rules can't be read, the wanted ones are
    /// attached anew. If none are wanted, nothing is changed, and the kernel is asked again.
    pub(super) fn of_look(told: anyhow::Result<Status>, wanted: Option<Rules>, netns: u64) -> Self {
        match told {
            Ok(status) => Self::Looked(Seen::of(&status, wanted)),
            Err(error) if wanted.is_none() => Self::Failed { step: LOOK, why: format!("{error:#}") },
            Err(error) => Self::Looked(Seen::Other {
                description: format!("unknown; netns {netns}; "),
                serves: false,
                difference: format!("{error:#}"),
            }),
        }
    }
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
                serves: in_force::serves(status),
                difference: difference.flatten().unwrap_or_else(|| "no rules are wanted".to_owned()),
            },
        }
    }
}
