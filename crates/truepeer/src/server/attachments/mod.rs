//! The `[[attach]]` entries: attached at the start, changed by a reload, detached at the end.
//!
//! ```text
//! confined truepeer ── "apply these", "drain", … ──▶ attach keeper: reads the file, attaches and detaches
//! ```
//! Attaching needs root's files and capabilities. A process that gives them up forks the attach keeper
//! before; any other attaches by itself.

mod keeper;
mod own;
mod service;
mod wire;

use std::sync::Arc;

use truepeer_bpf::Status;

pub(super) use self::keeper::ForkedKeeper;
use self::keeper::{AttachKeeper, Line};
use self::own::{Detached, Own};
use truepeer_attach as attach;
use truepeer_config::plan::{AttachKey, CheckedAttach};
use truepeer_config::spec::Verbosity;
use truepeer_ops::admin::AttachmentDoc;

/// The attachments of this process: it attaches by itself, or by its keeper.
pub(super) enum Attachments {
    Own(Own),
    Keeper(AttachKeeper),
}

/// The attachments at one moment. The admin thread reads their states.
#[derive(Clone)]
pub(super) enum Shown {
    Own(Vec<AttachKey>),
    Keeper(Arc<Line>, Vec<AttachKey>),
}

impl Attachments {
    /// Those of this process itself.
    pub(super) fn own(detached: Detached) -> Self {
        Self::Own(Own::new(detached))
    }

    /// Attaches what `wanted` has, and lets the rest leave. Describes each change. `verbosity`: of the
    /// configuration that `wanted` is a part of.
    ///
    /// # Errors
    /// The first that can't be attached. Everything is then as it was.
    pub(super) fn apply(
        &mut self,
        wanted: &[&CheckedAttach],
        verbosity: Verbosity,
    ) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Own(own) => own.apply(wanted),
            Self::Keeper(keeper) => keeper.apply(wanted, verbosity),
        }
    }

    /// The names by which two processes speak of them.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Own(own) => own.names(),
            Self::Keeper(keeper) => keeper.names(),
        }
    }

    /// An old process has these attached.
    pub(super) fn begin_take_over(&mut self, names: &[String]) {
        match self {
            Self::Own(own) => own.begin_take_over(names),
            Self::Keeper(keeper) => keeper.begin_take_over(names),
        }
    }

    /// The old process has let go.
    pub(super) fn end_take_over(&mut self) {
        match self {
            Self::Own(own) => own.end_take_over(),
            Self::Keeper(keeper) => keeper.end_take_over(),
        }
    }

    /// Another process has these attached now, and the rest leaves.
    pub(super) fn hand_over(&mut self, names: &[String]) {
        match self {
            Self::Own(own) => own.hand_over(names),
            Self::Keeper(keeper) => keeper.hand_over(names),
        }
    }

    /// A process that was to take over has failed, and may have left its rules.
    pub(super) fn renew(&mut self) {
        match self {
            Self::Own(own) => own.renew(),
            Self::Keeper(keeper) => keeper.renew(),
        }
    }

    /// Lets all leave.
    pub(super) fn drain(&mut self) {
        match self {
            Self::Own(own) => own.drain(),
            Self::Keeper(keeper) => keeper.drain(),
        }
    }

    /// Whether none is left.
    pub(super) fn have_ended(&self) -> bool {
        match self {
            Self::Own(own) => own.have_ended(),
            Self::Keeper(keeper) => keeper.have_ended(),
        }
    }

    pub(super) fn shown(&self) -> Shown {
        match self {
            Self::Own(own) => own.shown(),
            Self::Keeper(keeper) => keeper.shown(),
        }
    }

    /// Logs that the keeper has ended by itself, once.
    pub(super) fn notice_keeper(&mut self) {
        if let Self::Keeper(keeper) = self {
            keeper.notice();
        }
    }
}

impl Shown {
    /// The state of each, read now.
    pub(super) fn read(&self) -> Vec<AttachmentDoc> {
        match self {
            Self::Own(keys) => keys.iter().map(|key| doc(key, attach::status_of(key).ok())).collect(),
            Self::Keeper(line, keys) => {
                line.read().unwrap_or_else(|| keys.iter().map(|key| doc(key, None)).collect())
            }
        }
    }
}

fn doc(key: &AttachKey, status: Option<Option<Status>>) -> AttachmentDoc {
    // Unreadable devices are named by nothing: the state says enough.
    let uncovered = match &status {
        Some(Some(_)) => attach::uncovered_of(key).unwrap_or_default(),
        _ => Vec::new(),
    };
    AttachmentDoc::of(key.target.to_string(), status, uncovered)
}
