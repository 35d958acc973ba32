//! What to do next, from what is wanted and what is: pure. Runs again after each change, so every step must
//! bring both together.

use std::collections::BTreeMap;

use crate::processes::Place;
use crate::rules::Rules;

/// A pod's UID, or a container's id.
pub(crate) type Key = String;

/// What the owner of a pod or container wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Want {
    /// No annotation.
    Nothing,
    Attach(Rules),
    /// A wrong annotation: whatever is attached stays.
    Unclear(String),
    /// The operator or the pod's kind forbids it.
    Forbidden(String),
}

/// What is attached in the kernel, as far as the agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Actual {
    /// The kernel is to be asked.
    Unknown,
    Nothing,
    Attached {
        netns: u64,
        rules: Rules,
    },
    /// Something is attached, with other rules than those that were wanted when the kernel was asked.
    Other {
        netns: u64,
    },
}

/// The step that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Attach,
    Look,
    /// Waits for open connections, perhaps for days.
    Detach,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Attaches, or changes the rules; ends a `Detach` that is under way.
    Attach(Rules),
    /// Asks the kernel what is attached, and whether it is exactly these rules.
    Look(Option<Rules>),
    Detach,
    /// The network namespace has ended, and everything with it; ends a `Detach` that is under way.
    Forget,
}

/// One pod or container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) want: &'a Want,
    /// `None`: no process in a network namespace with an address, yet or any more.
    pub(crate) place: Option<&'a Place>,
    /// The processes of the machine were looked through, and none is the pod's.
    pub(crate) is_lost: bool,
    pub(crate) actual: &'a Actual,
    pub(crate) doing: Option<Doing>,
    /// Not too soon after the step before.
    pub(crate) is_due: bool,
    /// Who was there first is attached first: the number of its arrival.
    pub(crate) arrival: u64,
}

/// The steps, and those for which there is no room.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<(Key, Step)>,
    pub(crate) without_room: Vec<Key>,
}

/// Decides. `max`: how many may be attached at a time.
pub(crate) fn plan(views: &BTreeMap<Key, View<'_>>, max: usize) -> Plan {
    let mut plan = Plan::default();
    let has_room_already = |view: &View<'_>| match (view.actual, view.doing) {
        (_, Some(Doing::Attach)) => true,
        (Actual::Attached { .. } | Actual::Other { .. } | Actual::Unknown, _) => {
            !matches!(view.want, Want::Nothing | Want::Forbidden(_))
        }
        (Actual::Nothing, _) => false,
    };
    let mut taken = views.values().filter(|view| has_room_already(view)).count();
    let mut in_order: Vec<_> = views.iter().collect();
    in_order.sort_by_key(|(_, view)| view.arrival);
    for (key, view) in in_order {
        let needs_room = matches!(view.want, Want::Attach(_)) && !has_room_already(view);
        if needs_room && taken >= max {
            plan.without_room.push(key.clone());
            continue;
        }
        taken += usize::from(needs_room);
        if let Some(step) = next(view) {
            plan.steps.push((key.clone(), step));
        }
    }
    plan
}

fn next(view: &View<'_>) -> Option<Step> {
    if matches!(view.doing, Some(Doing::Attach | Doing::Look)) {
        return None;
    }
    let Some(place) = view.place else { return without_place(view) };
    let elsewhere = |netns: u64| netns != place.netns;
    let step = match (view.want, view.actual) {
        // A sandbox that was started again has another network namespace.
        (want, Actual::Attached { netns, .. } | Actual::Other { netns }) if elsewhere(*netns) => match want {
            Want::Attach(rules) => Step::Attach(rules.clone()),
            _ => return Some(Step::Forget),
        },
        (Want::Attach(rules), Actual::Attached { rules: attached, .. }) => {
            let is_as_wanted = rules == attached && view.doing.is_none();
            (!is_as_wanted).then(|| Step::Attach(rules.clone()))?
        }
        // At once, also after an attach that failed: until then the pod may be called attached. A detach that
        // waits is ended by new rules: no need to ask.
        (Want::Attach(rules), Actual::Unknown) if view.doing.is_none() => {
            return Some(Step::Look(Some(rules.clone())));
        }
        (Want::Attach(rules), _) => Step::Attach(rules.clone()),
        (Want::Unclear(_), Actual::Unknown) if view.doing.is_none() => Step::Look(None),
        (Want::Nothing | Want::Forbidden(_), Actual::Nothing) | (Want::Unclear(_), _) => return None,
        (Want::Nothing | Want::Forbidden(_), _) => view.doing.is_none().then_some(Step::Detach)?,
    };
    view.is_due.then_some(step)
}

/// Nothing can be attached. What was attached ended with its namespace.
fn without_place(view: &View<'_>) -> Option<Step> {
    match view.actual {
        Actual::Attached { .. } | Actual::Other { .. } => Some(Step::Forget),
        Actual::Unknown if view.is_lost && matches!(view.want, Want::Nothing | Want::Forbidden(_)) => {
            Some(Step::Forget)
        }
        // The process may still be found.
        Actual::Unknown | Actual::Nothing => None,
    }
}

/// What is said of an attachment.
pub(crate) fn description(rules: &Rules, netns: u64) -> String {
    format!("{rules}; netns {netns}; truepeer {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests;
