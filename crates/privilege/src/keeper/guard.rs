//! Adds the rules that a process needs when it starts. The last process that needs a rule removes it.

use std::time::{Duration, Instant};

use super::Keeper;
use truepeer_routes::apply::{self, ApplyOutcome, RoutesError, chain};
use truepeer_routes::change;
use truepeer_routes::item::Item;
use truepeer_routes::netlink::Netlink;
use truepeer_routes::options::RoutesMode;
use truepeer_routes::owners::{Owner, RulesLock};
use truepeer_routes::plan::{RoutePlan, Setup};
use truepeer_routes::print::apply_command;

/// Who changes the kernel's rules.
#[derive(Debug, Clone, Default)]
pub enum Hands {
    /// This process, if it may.
    #[default]
    Own,
    /// The keeper: this process has given up the capability.
    Keeper(Keeper),
}

impl Hands {
    /// Adds what is missing of a plan. `sweeps`: first removes what killed processes have left and nobody
    /// needs.
    fn add(&self, plan: &RoutePlan, sweeps: bool) -> anyhow::Result<ApplyOutcome> {
        match self {
            Self::Own => Ok(change::add(plan, sweeps)?),
            Self::Keeper(keeper) => keeper.add(plan, sweeps),
        }
    }

    fn remove_unused(&self) -> anyhow::Result<usize> {
        match self {
            Self::Own => Ok(change::remove_unused()?),
            Self::Keeper(keeper) => keeper.remove_unused(),
        }
    }
}

/// Keeps the routes while it lives. Create and drop it in the network namespace of the upstream sockets.
#[derive(Debug)]
#[must_use = "the routes go with the guard"]
pub struct RoutesGuard {
    owner: Option<Owner>,
    hands: Hands,
    upstream_mark: Option<u32>,
    /// The rules and routes that are in place. If another program removes them, they are added again.
    kept: Option<RoutePlan>,
    /// When the last warning of that was logged.
    warned: Option<Instant>,
    /// The last look found rules missing, but another process held the lock.
    has_met_lock: bool,
}

/// The least time between two warnings: another program may remove a rule again and again.
const WARN_EVERY: Duration = Duration::from_secs(60);

impl RoutesGuard {
    /// Adds the rules that replies need, as far as the mode and the privileges allow. Logs each failure with
    /// the command that fixes it.
    ///
    /// # Errors
    /// Only with [`RoutesMode::Auto`]: something that is needed could not be added.
    pub fn establish(mode: RoutesMode, setup: &Setup, hands: &Hands) -> anyhow::Result<Self> {
        let hands = hands.clone();
        if mode == RoutesMode::Manual {
            return Ok(Self {
                owner: None,
                hands,
                upstream_mark: setup.mark,
                kept: None,
                warned: None,
                has_met_lock: false,
            });
        }
        let mut plan = RoutePlan::for_setup(setup);
        let (owner, outcome) = bring_about(&plan, &hands);
        let holds = match outcome {
            Ok(outcome) => {
                let has_failed =
                    |item: &Item| outcome.failed.iter().any(|(failed, _)| failed.need == item.need);
                plan.items.retain(|item| !has_failed(item));
                report(&outcome, setup)
            }
            Err(error) => {
                tracing::warn!("routes: the kernel's rules can't be read or changed: {error:#}");
                plan.items.clear();
                false
            }
        };
        // Without its rule the mark is useless, and another program's rule may match it.
        let upstream_mark = setup.mark.or(plan.upstream_mark.filter(|_| holds));
        // A process that isn't counted removes nothing at its end, so it adds nothing meanwhile.
        let kept = (owner.is_some() && !plan.items.is_empty()).then_some(plan);
        let guard = Self { owner, hands, upstream_mark, kept, warned: None, has_met_lock: false };
        anyhow::ensure!(holds || mode != RoutesMode::Auto, "--routes auto: not all routes could be made");
        Ok(guard)
    }

    /// Whether [`Self::restore`] has anything to look after.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Adds again the rules and routes that another program has removed. It never waits for the
    /// [`RulesLock`], which any local user can hold. If another process holds it, that may be a truepeer
    /// that adds the same rules: so this look does nothing, and the next one goes on without the lock.
    /// Returns whether it has added something.
    pub fn restore(&mut self, now: Instant) -> bool {
        let Some(plan) = &self.kept else { return false };
        let looked = Netlink::open().and_then(|mut netlink| apply::is_in_place(&mut netlink, plan));
        if looked.as_ref().is_ok_and(|is_in_place| *is_in_place) {
            self.has_met_lock = false;
            return false;
        }
        let lock = RulesLock::try_acquire();
        if lock.is_none() && !self.has_met_lock {
            self.has_met_lock = true;
            return false;
        }
        let restored = self.hands.add(plan, false);
        drop(lock);
        let has_added = restored.as_ref().is_ok_and(|outcome| !outcome.added.is_empty());
        self.warn_of(restored, now);
        has_added
    }

    fn warn_of(&mut self, restored: anyhow::Result<ApplyOutcome>, now: Instant) {
        let is_due = self.warned.is_none_or(|warned| now >= warned + WARN_EVERY);
        if !is_due
            || restored.as_ref().is_ok_and(|outcome| outcome.added.is_empty() && outcome.failed.is_empty())
        {
            return;
        }
        self.warned = Some(now);
        match restored {
            Err(error) => tracing::warn!("routes: some are missing, and can't be put back: {error:#}"),
            Ok(ApplyOutcome { added, failed, .. }) => match failed.first() {
                None => tracing::warn!(
                    added = added.len(),
                    "routes: another program had removed them, and truepeer has added them again; systemd-networkd removes foreign rules \
                     when it starts, unless networkd.conf has ManageForeignRoutingPolicyRules=no"
                ),
                Some((_, error)) => tracing::warn!(
                    added = added.len(),
                    error = chain(error),
                    "routes: another program has removed them, and they can't be put back: replies of backends won't come back"
                ),
            },
        }
    }

    /// The mark for upstream sockets: `--mark`, or the one that the added rules match.
    pub fn upstream_mark(&self) -> Option<u32> {
        self.upstream_mark
    }
}

impl Drop for RoutesGuard {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        match release(owner, &self.hands) {
            Ok(removed) => tracing::debug!(removed, "routes: removed"),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "routes: left in place; `truepeer routes remove` takes them out (ExecStopPost= of a unit)"
            ),
        }
    }
}

/// Counts this process as a user of the plan's items, then adds what is missing.
///
/// The order matters if the lock can't be taken: [`release`] removes first and counts again afterwards, so
/// one of two processes always sees the other.
fn bring_about(plan: &RoutePlan, hands: &Hands) -> (Option<Owner>, anyhow::Result<ApplyOutcome>) {
    let _lock = RulesLock::acquire();
    let owner = Owner::of(plan.items.iter().map(|item| &item.need));
    let owner = owner
        .inspect_err(|error| {
            tracing::warn!(%error, "routes: not counted as a user of the rules: another truepeer that ends may remove them");
        })
        .ok();
    (owner, hands.add(plan, true))
}

/// Stops counting this process, then removes what nobody else needs. Returns how much that was.
fn release(owner: Owner, hands: &Hands) -> anyhow::Result<usize> {
    let _lock = RulesLock::acquire();
    drop(owner);
    hands.remove_unused()
}

/// Logs the outcome: one line for success, one for missing privileges, one for each other failure.
fn report(outcome: &ApplyOutcome, setup: &Setup) -> bool {
    if !outcome.added.is_empty() {
        tracing::info!(
            added = outcome.added.len(),
            present = outcome.present.len(),
            table = setup.table,
            "routes: in place"
        );
    }
    for (item, error) in outcome.failed.iter().filter(|(_, e)| !e.is_missing_privilege()) {
        log_failure(item, error);
    }
    if outcome.failed.iter().any(|(_, e)| e.is_missing_privilege()) {
        tracing::warn!(
            missing = outcome.failed.len(),
            "routes: replies of backends won't come back, and CAP_NET_ADMIN is missing to mend that; as root: {}",
            apply_command(setup)
        );
    }
    outcome.failed.is_empty()
}

fn log_failure(item: &Item, error: &RoutesError) {
    let hint = error.hint().unwrap_or("truepeer doctor tells more");
    tracing::warn!(
        error = chain(error),
        wanted = truepeer_routes::print::command(&item.need),
        "routes: {}; {hint}",
        item.why
    );
}
