//! The rules and routes of all entries.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use truepeer_config::plan::{Checked, Config, setup_of};
use truepeer_config::spec::RoutesMode;
use truepeer_privilege::keeper::Keeper;
use truepeer_privilege::keeper::guard::{Hands, RoutesGuard};
use truepeer_routes::plan::Setup;
use truepeer_routes::watch::RoutesWatch;

/// The rules and routes of all plans so far: open sessions may still need those of an earlier one.
#[derive(Default)]
pub(super) struct Routes {
    guards: Vec<(RoutesMode, Setup, RoutesGuard)>,
    hands: Hands,
    /// Set once a guard has rules to look after.
    watch: Option<RoutesWatch>,
}

impl Routes {
    /// No rules yet.
    pub(super) fn by(hands: Hands) -> Self {
        Self { guards: Vec::new(), hands, watch: None }
    }

    /// Adds the rules that this entry needs and no earlier one did. Returns the mark for upstream
    /// connections.
    pub(super) fn establish(&mut self, config: &Config, checked: &Checked) -> anyhow::Result<Option<u32>> {
        let (mode, setup) = (config.routes.mode, setup_of(config, checked).setup()?);
        let known = self.guards.iter().position(|(by, known, _)| (by, known) == (&mode, &setup));
        let place = match known {
            Some(place) => place,
            None => {
                let guard = RoutesGuard::establish(mode, &setup, &self.hands)?;
                if guard.is_kept() && self.watch.is_none() {
                    let watch = RoutesWatch::begin(Instant::now());
                    let failed = |error: &_| tracing::warn!(%error, "routes: can't notice when another program removes them");
                    self.watch = watch.inspect_err(failed).ok();
                }
                self.guards.push((mode, setup, guard));
                self.guards.len() - 1
            }
        };
        Ok(self.guards[place].2.upstream_mark())
    }

    /// Readable when [`Self::restore_if_due`] or [`Self::notice_keeper`] may have something to do.
    pub(super) fn noticed(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.watch.as_ref().map(RoutesWatch::as_fd), self.keeper().and_then(Keeper::watched)]
    }

    /// Says if the keeper has ended by itself.
    pub(super) fn notice_keeper(&self) {
        self.keeper().into_iter().for_each(Keeper::notice);
    }

    fn keeper(&self) -> Option<&Keeper> {
        match &self.hands {
            Hands::Own => None,
            Hands::Keeper(keeper) => Some(keeper),
        }
    }

    /// Leaves all rules in place.
    pub(super) fn leave(self) {
        self.keeper().into_iter().for_each(Keeper::end);
        std::mem::forget(self);
    }

    /// When to call [`Self::restore_if_due`] at the latest.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.watch.as_ref().map(RoutesWatch::next_look)
    }

    /// Adds again the rules and routes that another program has removed. Returns whether some were missing
    /// meanwhile.
    pub(super) fn restore_if_due(&mut self, now: Instant) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        if !watch.is_due(now) {
            return false;
        }
        let has_lost = watch.has_lost();
        self.guards.iter_mut().fold(has_lost, |lost, (.., guard)| guard.restore(now) | lost)
    }
}

/// The guards first: the keeper removes their rules.
impl Drop for Routes {
    fn drop(&mut self) {
        self.guards.clear();
        self.keeper().into_iter().for_each(Keeper::end);
    }
}
