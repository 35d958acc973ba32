//! Orders to the driver, and their outcomes.

use std::time::Duration;

use ipnet::IpNet;

use crate::in_force;
use crate::plan::{Key, Step};
use crate::processes::{Addresses, Place};
use crate::rules::Rules;
use crate::truepeer::Status;

/// A place, and its addresses, if they can be read. Without any, the network plugin is not through with it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) addresses: Option<Addresses>,
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
    /// Before it began.
    pub(super) addresses: Option<Addresses>,
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
        senders: Vec<IpNet>,
        difference: String,
    },
    Nothing,
}

impl Outcome {
    /// `told`: the kernel's answer, or why there is none. If the rules can't be read, the wanted ones are
    /// attached anew. If none are wanted, nothing is changed, and the kernel is asked again.
    pub(super) fn of_look(
        told: anyhow::Result<Status>,
        wanted: Option<Rules>,
        netns: u64,
        addresses: Option<&Addresses>,
    ) -> Self {
        match told {
            Ok(status) => Self::Looked(Seen::of(&status, wanted, addresses)),
            Err(error) if wanted.is_none() => Self::Failed { step: LOOK, why: format!("{error:#}") },
            Err(error) => Self::Looked(Seen::Other {
                description: format!("unknown; netns {netns}; "),
                serves: false,
                senders: Vec::new(),
                difference: format!("{error:#}"),
            }),
        }
    }
}

impl Seen {
    pub(super) fn of(status: &Status, wanted: Option<Rules>, addresses: Option<&Addresses>) -> Self {
        if !status.attached {
            return Self::Nothing;
        }
        let later = || addresses.and_then(|addresses| in_force::later_address(status, addresses));
        let difference = |rules| {
            let address = || later().map(|ip| format!("the pod got the address {ip} after the attach"));
            in_force::difference(status, rules).or_else(address)
        };
        let difference = wanted.as_ref().map(difference);
        match (wanted, difference) {
            (Some(rules), Some(None)) => Self::Same(rules),
            (_, difference) => Self::Other {
                description: in_force::shown(status),
                serves: in_force::serves(status),
                senders: in_force::senders(status).copied().collect(),
                difference: difference.flatten().unwrap_or_else(|| "no rules are wanted".to_owned()),
            },
        }
    }
}
