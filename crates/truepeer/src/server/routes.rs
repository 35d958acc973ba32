//! The rules and routes of all entries.

use crate::plan::{Checked, Config, setup_of};
use crate::routes::guard::RoutesGuard;
use crate::routes::plan::Setup;

/// The rules and routes of all plans so far: open sessions may still need those of an earlier one.
#[derive(Default)]
pub(super) struct Routes {
    guards: Vec<(Setup, RoutesGuard)>,
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
                self.guards.push((setup, guard));
                self.guards.len() - 1
            }
        };
        Ok(self.guards[place].1.upstream_mark())
    }
}
