//! One pod or container: what is wanted, what is, and what is under way.

mod adoption;
mod state;

use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::plan::{Actual, Doing, View, Want, description};
use crate::processes::{Addresses, Place};
use crate::rules::Rules;
use crate::sender_limit::SenderLimit;

use super::outcome::{Done, Found, LOOK, Outcome};
use super::{Claim, Desired};

/// See the module.
pub(super) struct Entry {
    pub(super) desired: Desired,
    pub(super) place: Option<Place>,
    pub(super) backoff: Backoff,
    pub(super) is_without_room: bool,
    pub(super) actual: Actual,
    /// The attachment that an earlier agent reported. It is shown until the kernel has been asked, and used
    /// for nothing else.
    claim: Option<Claim>,
    /// Of [`Actual::Other`].
    other: Other,
    /// Its first place has not been found yet.
    is_new: bool,
    /// When a step last ended, or an attachment was adopted.
    pub(super) changed_at: Option<Instant>,
    /// The pod's addresses when it was attached, adopted or found. `None`: they can't be read.
    addresses: Option<Addresses>,
    /// Its server has been looked for.
    pub(super) is_server_known: bool,
    /// See [`Desired::is_serving`].
    serving_since: Option<Instant>,
    /// Another one in the same network namespace was there first.
    pub(super) conflict: Option<Want>,
    pub(super) arrival: u64,
    heard_at: Instant,
    attached_at: Option<Place>,
    /// When its process was last seen, in the clock of [`Place::started`].
    seen_until: u64,
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

/// The rules that are attached, where they are not the wanted ones.
#[derive(Default)]
struct Other {
    description: String,
    /// New connections are served by it.
    serves: bool,
    /// That the operator does not let pods name one of its senders: it must not stay, as another wrong
    /// annotation lets it.
    excess: Option<Want>,
}

struct Running {
    doing: Doing,
    number: u64,
}

impl Entry {
    pub(super) fn new(desired: Desired, arrival: u64, now: Instant) -> Self {
        let may_be_attached =
            matches!(desired.want, Want::Attach(_) | Want::Unclear(_)) || desired.claim.is_some();
        Self {
            actual: if may_be_attached { Actual::Unknown } else { Actual::Nothing },
            claim: desired.claim.clone(),
            other: Other::default(),
            is_new: true,
            changed_at: None,
            addresses: None,
            is_server_known: false,
            serving_since: desired.is_serving.then_some(now),
            conflict: None,
            desired,
            place: None,
            backoff: Backoff::new(),
            is_without_room: false,
            arrival,
            heard_at: now,
            attached_at: None,
            seen_until: 0,
            running: None,
            failure: None,
            warnings: Vec::new(),
            searching_since: now,
            has_process: false,
            was_searched: false,
            steps: 0,
        }
    }

    /// The same pod or container, perhaps with other annotations or another process.
    pub(super) fn update(&mut self, desired: Desired, now: Instant) {
        if desired.want != self.desired.want {
            self.failure = None;
            self.warnings.clear();
        }
        if desired.process != self.desired.process {
            self.lose_place(now);
        }
        self.serving_since = desired.is_serving.then(|| self.serving_since.unwrap_or(now));
        // The claim was the earlier agent's only when this one began.
        self.desired = desired;
    }

    /// Another pod had its network namespace first: what is attached there is that pod's.
    pub(super) fn is_not_its_own(&mut self) {
        if self.actual == Actual::Unknown {
            self.actual = Actual::Nothing;
        }
    }

    /// The kernel is to be asked what it has. `is_good`: until then the pod stays ready, if it is.
    pub(super) fn doubt(&mut self, is_good: bool) {
        let claim = match &self.actual {
            Actual::Attached { netns, rules } => {
                Claim { description: description(rules, *netns), is_true: is_good }
            }
            Actual::Other { .. } => {
                let is_true = is_good && self.other.serves && self.is_claimed();
                Claim { description: self.other.description.clone(), is_true }
            }
            Actual::Unknown | Actual::Nothing => return,
        };
        self.claim = Some(claim);
        self.actual = Actual::Unknown;
    }

    fn is_claimed(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.is_true)
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

    /// `had_nothing`: whether it is known that nothing was attached at a place when the agent started.
    pub(super) fn found(&mut self, found: Option<Found>, had_nothing: impl Fn(&Place) -> bool) {
        let has_address = |found: &Found| found.addresses.as_ref().is_none_or(|all| !all.is_empty());
        let has_address = found.as_ref().is_some_and(has_address);
        let (place, addresses) = found.map_or((None, None), |found| (Some(found.place), found.addresses));
        self.has_process = place.is_some();
        self.was_searched = true;
        // The kernel may give the number of a network namespace that has ended to the next one. The same
        // process proves that it is the same, or one that has run beside it: where the runtime starts no
        // process of the sandbox (CRI-O), the first container may end before the others.
        let (before, seen_until) = (self.attached_at.clone(), self.seen_until);
        let is_same = |place: &Place| {
            before.as_ref().is_some_and(|before| {
                let is_beside = place.netns == before.netns && place.started < seen_until;
                (place.pid, place.started) == (before.pid, before.started) || is_beside
            })
        };
        if place.as_ref().is_some_and(|place| !is_same(place)) {
            self.doubt(false);
        }
        // Those of what is attached are compared with them later.
        if !matches!(self.actual, Actual::Attached { .. }) {
            self.addresses = addresses;
        }
        if let Some(place) = &place {
            if self.is_new && had_nothing(place) && self.actual == Actual::Unknown {
                self.actual = Actual::Nothing;
            }
            self.is_new = false;
        }
        self.place = place.filter(|place| is_same(place) || has_address);
    }

    /// Its process runs at this time.
    pub(super) fn is_seen(&mut self, ticks: u64) {
        let is_there = |place: &Place| self.attached_at.as_ref().is_some_and(|at| at.netns == place.netns);
        if self.place.as_ref().is_some_and(is_there) {
            self.seen_until = ticks;
        }
    }

    /// `notice`: how long after it was heard of its first step may begin.
    pub(super) fn view(&self, now: Instant, notice: Duration) -> View<'_> {
        View {
            want: self.want(),
            place: self.place.as_ref(),
            is_lost: self.is_lost(),
            actual: &self.actual,
            doing: self.doing(),
            is_due: self.backoff.is_due(now) && now >= self.heard_at + notice,
            arrival: self.arrival,
        }
    }

    /// When the next step may begin.
    pub(super) fn due(&self, notice: Duration) -> Option<Instant> {
        self.backoff.due().into_iter().chain([self.heard_at + notice]).max()
    }

    pub(super) fn doing(&self) -> Option<Doing> {
        self.running.as_ref().map(|running| running.doing)
    }

    /// The kernel has not been asked yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.actual == Actual::Unknown && self.running.is_none()
    }

    /// Something is in the kernel, or may be.
    pub(super) fn may_be_attached(&self) -> bool {
        self.actual != Actual::Nothing
    }

    /// The number of the step that is under way.
    pub(super) fn running(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.number)
    }

    /// Its result will not count; its process ends.
    pub(super) fn interrupt(&mut self) {
        self.running = None;
    }

    pub(super) fn forget(&mut self) {
        tracing::info!(name = %self.desired.name, "its network namespace has ended");
        self.actual = Actual::Nothing;
        self.warnings.clear();
        self.failure = None;
    }

    /// The step's number.
    pub(super) fn begin(&mut self, doing: Doing, now: Instant) -> u64 {
        // It changes nothing, and doesn't make the next change wait.
        if doing != Doing::Look {
            self.backoff.begin(now);
        }
        if doing == Doing::Detach {
            self.serves_no_more();
        }
        self.steps += 1;
        self.running = Some(Running { doing, number: self.steps });
        self.steps
    }

    /// A detach begins: new connections pass, also if it is interrupted and the next step must wait.
    fn serves_no_more(&mut self) {
        if let Actual::Attached { netns, rules } = &self.actual {
            self.other = Other { description: description(rules, *netns), ..Other::default() };
            self.actual = Actual::Other { netns: *netns };
        }
        self.other.serves = false;
        if let Some(claim) = &mut self.claim {
            claim.is_true = false;
        }
    }

    /// The step's name and its result, unless it was interrupted meanwhile.
    pub(super) fn finish(
        &mut self,
        done: Done,
        limit: &SenderLimit,
        now: Instant,
    ) -> Option<(&'static str, &'static str)> {
        self.running.take_if(|running| running.number == done.number)?;
        self.changed_at = Some(now);
        let name = &self.desired.name;
        Some(match done.outcome {
            Outcome::Attached { rules, warnings } => {
                let netns = done.place.netns;
                tracing::info!(%name, rules = %rules, netns, took_ms = done.took.as_millis(), "attached");
                warnings.iter().for_each(|warning| tracing::warn!(%name, "{warning}"));
                self.addresses = done.addresses;
                self.attached(done.place, rules, warnings);
                ("attach", "ok")
            }
            Outcome::Looked(seen) => {
                self.addresses = done.addresses;
                self.seen(seen, done.place, limit)
            }
            Outcome::Detached => {
                tracing::info!(%name, "detached");
                self.forget_quietly();
                ("detach", "ok")
            }
            Outcome::Ended => {
                tracing::debug!(%name, pid = done.place.pid, "its process has ended meanwhile");
                self.is_half_done();
                self.lose_place(now);
                self.backoff = Backoff::new();
                ("attach", "ended")
            }
            Outcome::Failed { step, why } => {
                if self.failure.as_ref() != Some(&why) {
                    tracing::warn!(%name, step, "{why}");
                }
                self.failure = Some(why);
                match step {
                    "attach" => self.is_half_done(),
                    // The next one is not asked at once.
                    LOOK => self.backoff.begin(now),
                    _ => {}
                }
                // Its process may have ended meanwhile, and another have its number.
                self.lose_place(now);
                (step, "failed")
            }
        })
    }

    /// An attach that did not end well: what the kernel has is unknown.
    fn is_half_done(&mut self) {
        self.doubt(true);
        if self.actual == Actual::Nothing {
            self.actual = Actual::Unknown;
            self.claim = None;
        }
    }

    fn attached(&mut self, place: Place, rules: Rules, warnings: Vec<String>) {
        self.actual = Actual::Attached { netns: place.netns, rules };
        self.attached_at = Some(place);
        self.warnings = warnings;
        self.is_server_known = false;
        self.failure = None;
    }

    fn forget_quietly(&mut self) {
        self.actual = Actual::Nothing;
        self.warnings.clear();
        self.failure = None;
    }

    fn is_lost(&self) -> bool {
        self.was_searched && !self.has_process
    }

    pub(super) fn want(&self) -> &Want {
        let is_kept = matches!((&self.desired.want, &self.actual), (Want::Unclear(_), Actual::Other { .. }));
        let excess = self.other.excess.as_ref().filter(|_| is_kept);
        self.conflict.as_ref().or(excess).unwrap_or(&self.desired.want)
    }

    /// Since when its server has had to listen.
    pub(super) fn serving_since(&self) -> Option<Instant> {
        Some(self.changed_at?.max(self.serving_since?))
    }

    /// Whether no step has changed anything since, nor is about to.
    pub(super) fn is_as_at(&self, time: Instant) -> bool {
        self.running.is_none() && self.changed_at.is_none_or(|changed| changed < time)
    }
}
