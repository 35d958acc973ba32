//! One pod or container: what is wanted, what is, and what is under way.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::backoff::Backoff;
use crate::plan::{Actual, Doing, View, Want, description};
use crate::processes::Place;
use crate::rules::Rules;
use crate::statuses::{State, StatusRow};

use super::steps::{Done, Outcome};
use super::{Desired, Found};

/// See the module.
pub(super) struct Entry {
    pub(super) desired: Desired,
    pub(super) place: Option<Place>,
    pub(super) backoff: Backoff,
    pub(super) is_without_room: bool,
    actual: Actual,
    /// The claim is of rules that served, in a namespace that may still be there.
    is_claim_good: bool,
    /// Another one in the same network namespace was there first.
    pub(super) conflict: Option<Want>,
    pub(super) arrival: u64,
    attached_at: Option<Place>,
    running: Option<Running>,
    /// Why the last step failed.
    failure: Option<String>,
    warnings: Vec<String>,
    searching_since: Instant,
    /// A process is there, but no address yet.
    has_process: bool,
    was_searched: bool,
    /// Counts the steps.
    steps: u64,
}

struct Running {
    doing: Doing,
    number: u64,
    handle: AbortHandle,
}

impl Entry {
    pub(super) fn new(desired: Desired, arrival: u64) -> Self {
        Self {
            actual: desired.claim.clone().map_or(Actual::Nothing, |claim| Actual::Claimed(claim.description)),
            is_claim_good: desired.claim.as_ref().is_some_and(|claim| claim.is_true),
            conflict: None,
            desired,
            place: None,
            backoff: Backoff::new(),
            is_without_room: false,
            arrival,
            attached_at: None,
            running: None,
            failure: None,
            warnings: Vec::new(),
            searching_since: Instant::now(),
            has_process: false,
            was_searched: false,
            steps: 0,
        }
    }

    /// The same pod or container, perhaps with other annotations or another process.
    pub(super) fn update(&mut self, desired: Desired) {
        if desired.want != self.desired.want {
            self.failure = None;
            self.warnings.clear();
        }
        if desired.process != self.desired.process {
            self.lose_place(Instant::now());
        }
        // The claim was the earlier agent's only when this one began.
        self.desired = desired;
    }

    pub(super) fn lose_place(&mut self, now: Instant) {
        self.place = None;
        self.has_process = false;
        self.was_searched = false;
        self.searching_since = now;
    }

    pub(super) fn is_searching(&self) -> bool {
        self.place.is_none()
            && (matches!(self.desired.want, Want::Attach(_)) || self.actual != Actual::Nothing)
    }

    pub(super) fn searching_for(&self, now: Instant) -> Option<Duration> {
        self.is_searching().then(|| now.duration_since(self.searching_since))
    }

    pub(super) fn found(&mut self, found: Option<Found>) {
        let (place, has_address) =
            found.map_or((None, false), |found| (Some(found.place), found.has_address));
        self.has_process = place.is_some();
        self.was_searched = true;
        let is_same = |place: &Place| {
            self.attached_at
                .as_ref()
                .is_some_and(|before| (before.pid, before.started) == (place.pid, place.started))
        };
        // The kernel may give the number of a network namespace that has ended to the next one. Only the same process proves that it is the same.
        if let (Actual::Attached { netns, rules }, Some(place)) = (&self.actual, &place)
            && !is_same(place)
        {
            self.actual = Actual::Claimed(description(rules, *netns));
            self.is_claim_good = false;
        }
        self.place = place.filter(|place| is_same(place) || has_address);
    }

    pub(super) fn view(&self, now: Instant) -> View<'_> {
        View {
            want: self.want(),
            place: self.place.as_ref(),
            is_lost: self.is_lost(),
            actual: &self.actual,
            doing: self.doing(),
            is_due: self.backoff.is_due(now),
            arrival: self.arrival,
        }
    }

    pub(super) fn doing(&self) -> Option<Doing> {
        self.running.as_ref().map(|running| running.doing)
    }

    pub(super) fn is_attached(&self) -> bool {
        matches!(self.actual, Actual::Attached { .. })
    }

    /// Ends the step that is under way, with its process.
    pub(super) fn interrupt(&mut self) {
        if let Some(running) = self.running.take() {
            running.handle.abort();
        }
    }

    pub(super) fn forget(&mut self) {
        tracing::info!(name = %self.desired.name, "its network namespace has ended");
        self.actual = Actual::Nothing;
        self.warnings.clear();
        self.failure = None;
    }

    pub(super) fn begin(&mut self, doing: Doing, now: Instant, start: impl FnOnce(u64) -> AbortHandle) {
        self.backoff.begin(now);
        self.steps += 1;
        self.running = Some(Running { doing, number: self.steps, handle: start(self.steps) });
    }

    /// The step's name and its result, unless it was interrupted meanwhile.
    pub(super) fn finish(&mut self, done: Done) -> Option<(&'static str, &'static str)> {
        self.running.take_if(|running| running.number == done.number)?;
        let name = &self.desired.name;
        Some(match done.outcome {
            Outcome::Attached { rules, warnings } => {
                let netns = done.place.netns;
                tracing::info!(%name, rules = %rules, netns, took_ms = done.took.as_millis(), "attached");
                warnings.iter().for_each(|warning| tracing::warn!(%name, "{warning}"));
                self.attached(done.place, rules, warnings);
                ("attach", "ok")
            }
            Outcome::Adopted(rules) => {
                tracing::info!(%name, rules = %rules, netns = done.place.netns, "adopted");
                self.attached(done.place, rules, Vec::new());
                // Nothing was changed: a change may follow at once.
                self.backoff = Backoff::new();
                ("adopt", "ok")
            }
            Outcome::NotAdopted(why) => {
                tracing::info!(%name, "not as it was left: {why}");
                self.actual = Actual::Nothing;
                self.backoff = Backoff::new();
                ("adopt", "lost")
            }
            Outcome::Detached => {
                tracing::info!(%name, "detached");
                self.forget_quietly();
                ("detach", "ok")
            }
            Outcome::Failed { step, why } => {
                if self.failure.as_ref() != Some(&why) {
                    tracing::warn!(%name, step, "{why}");
                }
                self.failure = Some(why);
                // Its process may have ended meanwhile, and another have its number.
                self.lose_place(Instant::now());
                (step, "failed")
            }
        })
    }

    fn attached(&mut self, place: Place, rules: Rules, warnings: Vec<String>) {
        self.actual = Actual::Attached { netns: place.netns, rules };
        self.attached_at = Some(place);
        self.warnings = warnings;
        self.failure = None;
    }

    fn forget_quietly(&mut self) {
        self.actual = Actual::Nothing;
        self.warnings.clear();
        self.failure = None;
    }

    pub(super) fn line(&self, max: usize) -> StatusRow {
        let netns = match &self.actual {
            Actual::Attached { netns, .. } => Some(*netns),
            Actual::Claimed(_) | Actual::Nothing => None,
        };
        StatusRow { name: self.desired.name.clone(), state: self.state(max), netns }
    }

    fn state(&self, max: usize) -> State {
        let attached = match &self.actual {
            Actual::Attached { netns, rules } => Some(description(rules, *netns)),
            Actual::Claimed(claim) => Some(claim.clone()),
            Actual::Nothing => None,
        };
        match (self.want(), attached) {
            (Want::Unclear(why), kept) => State::Refused { why: why.clone(), kept },
            (Want::Forbidden(why), None) => State::Refused { why: why.clone(), kept: None },
            (Want::Nothing, None) => State::Idle,
            (Want::Nothing | Want::Forbidden(_), Some(description)) => State::Detaching { description },
            (Want::Attach(_), _) if self.is_without_room => State::NoRoom { max },
            (Want::Attach(_), attached) => self.state_of_attach(attached.filter(|claim| self.serves(claim))),
        }
    }

    /// `serving`: a pod stays ready while earlier rules serve it, until the new ones do.
    fn state_of_attach(&self, serving: Option<String>) -> State {
        match (&self.failure, serving) {
            (Some(why), kept) => State::Failed { why: why.clone(), kept },
            (None, Some(description)) => State::Attached { description, warnings: self.warnings.clone() },
            (None, None) => State::Waiting(self.waits_for()),
        }
    }

    /// Whether what is described is in the kernel, as far as is known: the sandbox has not ended, and is no other.
    fn serves(&self, description: &str) -> bool {
        let is_here = |place: &Place| description.contains(&format!("; netns {}; ", place.netns));
        let is_attached = match self.actual {
            Actual::Attached { .. } => true,
            Actual::Claimed(_) => self.is_claim_good,
            Actual::Nothing => false,
        };
        is_attached && !self.is_lost() && self.place.as_ref().is_none_or(is_here)
    }

    fn is_lost(&self) -> bool {
        self.was_searched && !self.has_process
    }

    fn want(&self) -> &Want {
        self.conflict.as_ref().unwrap_or(&self.desired.want)
    }

    fn waits_for(&self) -> &'static str {
        match (&self.place, self.has_process) {
            (None, false) => "no process in a network namespace of its own yet",
            (None, true) => "no address besides the loopback's yet",
            (Some(_), _) => "being attached",
        }
    }
}
