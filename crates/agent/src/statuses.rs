//! What the agent says about each pod or container: written by [`crate::node`], read by those that tell
//! users.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::plan::Key;

/// The reason of an event: the annotation's port has no server.
pub(crate) const NO_SERVER: &str = "NothingListens";
/// A counter of truepeer: a header from an address that is not listed. It passes as data.
pub(crate) const HEADER_UNLISTED: &str = "header_unlisted";

/// A pod's namespace and name, or a container's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.namespace.iter().try_for_each(|namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.name)
    }
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is wanted, and nothing is attached.
    Idle,
    /// For a process, an address, or the step under way.
    Waiting(&'static str),
    Attached {
        description: String,
        warnings: Vec<String>,
    },
    Refused {
        why: String,
        /// What was attached before stays.
        kept: Option<String>,
    },
    Failed {
        why: String,
        /// What was attached before stays.
        kept: Option<String>,
    },
    NoRoom {
        max: usize,
    },
    /// New connections pass; the open ones are waited for.
    Detaching {
        description: String,
        /// Why it must not stay, if it is still asked for.
        why: Option<String>,
    },
}

impl State {
    /// The label of the metric.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Waiting(_) => "waiting",
            Self::Attached { .. } => "attached",
            Self::Refused { .. } => "refused",
            Self::Failed { .. } => "failed",
            Self::NoRoom { .. } => "no_room",
            Self::Detaching { .. } => "detaching",
        }
    }
}

/// One pod or container.
#[derive(Debug, Clone)]
pub(crate) struct StatusRow {
    pub(crate) name: Name,
    pub(crate) state: State,
    /// Where it is attached.
    pub(crate) netns: Option<u64>,
}

impl StatusRow {
    pub(crate) fn idle(name: Name) -> Self {
        Self { name, state: State::Idle, netns: None }
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct StatusTable {
    lines: Mutex<BTreeMap<Key, StatusRow>>,
    changed: Notify,
    counts: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// The last of each reason that has not been told.
    refusals: Mutex<BTreeMap<(Key, String), String>>,
    alive: Mutex<Option<Instant>>,
    /// Of an agent that leaves: whether nothing is left.
    left: Mutex<Option<bool>>,
}

impl StatusTable {
    /// Replaces all lines; those that read are woken if a state is another.
    pub(crate) fn replace(&self, rows: BTreeMap<Key, StatusRow>) {
        let mut lines = locked(&self.lines);
        let before = std::mem::replace(&mut *lines, rows);
        let state = |rows: &BTreeMap<Key, StatusRow>, key: &Key| rows.get(key).map(|row| row.state.clone());
        if lines.keys().any(|key| state(&before, key) != state(&lines, key)) {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn rows(&self) -> BTreeMap<Key, StatusRow> {
        locked(&self.lines).clone()
    }

    /// Ends when a state has changed since this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Something that an event tells; `reason`: one of few.
    pub(crate) fn warn(&self, key: Key, reason: &str, text: String) {
        self.refused(key, reason.to_owned(), text);
    }

    /// A connection or datagram was refused, for a reason of which there are few.
    pub(crate) fn refused(&self, key: Key, reason: String, text: String) {
        locked(&self.refusals).insert((key, reason), text);
        self.changed.notify_waiters();
    }

    /// What was refused since the last call.
    pub(crate) fn take_refusals(&self) -> BTreeMap<(Key, String), String> {
        std::mem::take(&mut locked(&self.refusals))
    }

    /// Counts a step and how it ended.
    pub(crate) fn count(&self, step: &'static str, result: &'static str) {
        *locked(&self.counts).entry((step, result)).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        locked(&self.counts).clone()
    }

    /// The node's loop turns, and has heard what there is.
    pub(crate) fn mark_alive(&self, now: Instant) {
        *locked(&self.alive) = Some(now);
    }

    /// Says whether an agent that leaves has left.
    pub(crate) fn set_left(&self, is_left: bool) {
        *locked(&self.left) = Some(is_left);
    }

    /// Why it is not ready, if it isn't.
    pub(crate) fn unready_reason(&self) -> Option<&'static str> {
        let has_heard = self.last_alive().is_some();
        // What is told of it may be older than the lines.
        let is_idle = locked(&self.lines).values().all(|line| line.state == State::Idle);
        let has_left = locked(&self.left).is_none_or(|has_left| has_left && is_idle);
        match (has_heard, has_left) {
            (false, _) => Some("the list of pods or containers has not come yet"),
            (true, false) => Some("some are still attached"),
            (true, true) => None,
        }
    }

    /// When it last turned; `None` before it has heard what there is.
    pub(crate) fn last_alive(&self) -> Option<Instant> {
        *locked(&self.alive)
    }
}

/// No holder panics while the data is half written.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
