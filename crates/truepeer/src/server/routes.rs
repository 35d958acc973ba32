//! The rules and routes of all entries.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use crate::plan::{Checked, Config, setup_of};
use crate::routes::guard::RoutesGuard;
use crate::routes::plan::Setup;
use crate::routes::watch::RoutesWatch;

/// The rules and routes of all plans so far: open sessions may still need those of an earlier one.
#[derive(Default)]
pub(super) struct Routes {
    guards: Vec<(Setup, RoutesGuard)>,
    /// Set once a guard has rules to look after.
    watch: Option<RoutesWatch>,
}

impl Routes {
    /// Adds the rules that this entry needs and no earlier one did. Returns the mark for upstream connections.
    pub(super) fn establish(&mut self, config: &Config, checked: &Checked) -> anyhow::Result<Option<u32>> {
        let setup = setup_of(config, checked).setup()?;
        let known = self.guards.iter().position(|(known, _)| *known == setup);
        let place = match known {
            Some(place) => place,
            None => {
                let guard = RoutesGuard::establish(config.routes.mode, &setup)?;
                if guard.is_kept() && self.watch.is_none() {
                    let watch = RoutesWatch::begin(Instant::now());
                    let failed = |error: &_| tracing::warn!(%error, "routes: can't notice when another program removes them");
                    self.watch = watch.inspect_err(failed).ok();
                }
                self.guards.push((setup, guard));
                self.guards.len() - 1
            }
        };
        Ok(self.guards[place].1.upstream_mark())
    }

    /// Readable when [`Self::restore_if_due`] may have something to do.
    pub(super) fn noticed(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(RoutesWatch::as_fd)
    }

    /// When to call [`Self::restore_if_due`] at the latest.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.watch.as_ref().map(RoutesWatch::next_look)
    }

    /// Adds again the rules and routes that another program has removed.
    pub(super) fn restore_if_due(&mut self, now: Instant) {
        if self.watch.as_mut().is_some_and(|watch| watch.is_due(now)) {
            self.guards.iter_mut().for_each(|(_, guard)| guard.restore(now));
        }
    }
}
