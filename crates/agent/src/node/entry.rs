//! One pod or container: what is wanted, what is, and what is under way.

mod state;

use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::in_force;
use crate::plan::{Actual, Doing, View, Want, description};
use crate::processes::Place;
use crate::rules::Rules;
use crate::truepeer::Status;

use super::outcome::{Done, Found, LOOK, Outcome, Seen};
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
    /// Since the last change of `actual`.
    pub(super) changed_at: Instant,
    /// Its server has been looked for.
    pub(super) is_server_known: bool,
    /// Another one in the same network namespace was there first.
    pub(super) conflict: Option<Want>,
    pub(super) arrival: u64,
    heard_at: Instant,
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

/// The rules that are attached, where they are not the wanted ones.
#[derive(Default)]
struct Other {
    description: String,
    /// New connections are served by it.
    serves: bool,
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
            changed_at: now,
            is_server_known: false,
            conflict: None,
            desired,
            place: None,
            backoff: Backoff::new(),
            is_without_room: false,
            arrival,
            heard_at: now,
            attached_at: None,
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
        // The claim was the earlier agent's only when this one began.
        self.desired = desired;
    }

    /// The kernel has this in its network namespace, though nobody asks for it.
    pub(super) fn is_attached_unasked(&mut self, place: &Place, status: &Status) {
        self.actual = Actual::Other { netns: place.netns };
        self.other = Other { description: in_force::shown(status), serves: in_force::serves(status) };
        self.attached_at = Some(place.clone());
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
        let (place, has_address) =
            found.map_or((None, false), |found| (Some(found.place), found.has_address));
        self.has_process = place.is_some();
        self.was_searched = true;
        let before = self.attached_at.as_ref().map(|before| (before.pid, before.started));
        let is_same = |place: &Place| before == Some((place.pid, place.started));
        // The kernel may give the number of a network namespace that has ended to the next one. Only the same
        // process proves that it is the same.
        if place.as_ref().is_some_and(|place| !is_same(place)) {
            self.doubt(false);
        }
        if let Some(place) = &place {
            if self.is_new && had_nothing(place) && self.actual == Actual::Unknown {
                self.actual = Actual::Nothing;
            }
            self.is_new = false;
        }
        self.place = place.filter(|place| is_same(place) || has_address);
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
            self.other.description = description(rules, *netns);
            self.actual = Actual::Other { netns: *netns };
        }
        self.other.serves = false;
        if let Some(claim) = &mut self.claim {
            claim.is_true = false;
        }
    }

    /// The step's name and its result, unless it was interrupted meanwhile.
    pub(super) fn finish(&mut self, done: Done, now: Instant) -> Option<(&'static str, &'static str)> {
        self.running.take_if(|running| running.number == done.number)?;
        self.changed_at = now;
        let name = &self.desired.name;
        Some(match done.outcome {
            Outcome::Attached { rules, warnings } => {
                let netns = done.place.netns;
                tracing::info!(%name, rules = %rules, netns, took_ms = done.took.as_millis(), "attached");
                warnings.iter().for_each(|warning| tracing::warn!(%name, "{warning}"));
                self.attached(done.place, rules, warnings);
                ("attach", "ok")
            }
            Outcome::Looked(seen) => self.seen(seen, done.place),
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

    /// Takes over what the kernel has at this place, or notes that it differs.
    fn seen(&mut self, seen: Seen, place: Place) -> (&'static str, &'static str) {
        let (name, netns) = (&self.desired.name, place.netns);
        match seen {
            Seen::Same(rules) => {
                tracing::info!(%name, rules = %rules, netns, "adopted");
                self.attached(place, rules, Vec::new());
                ("adopt", "ok")
            }
            Seen::Other { description, serves, difference } => {
                tracing::info!(%name, found = %description, "not as it is wanted: {difference}");
                self.actual = Actual::Other { netns };
                self.other = Other { description, serves };
                self.attached_at = Some(place);
                ("adopt", "changed")
            }
            Seen::Nothing => {
                self.actual = Actual::Nothing;
                ("adopt", "lost")
            }
        }
    }

    /// `status`: of its place, read a moment ago. A step that asks for each pod would take seconds for many.
    pub(super) fn adopt(&mut self, status: &Status, now: Instant) -> Option<(&'static str, &'static str)> {
        let wanted = match self.want() {
            Want::Attach(rules) => Some(rules.clone()),
            Want::Nothing | Want::Unclear(_) | Want::Forbidden(_) => None,
        };
        let place = self.place.clone()?;
        self.changed_at = now;
        Some(self.seen(Seen::of(status, wanted), place))
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
        self.conflict.as_ref().unwrap_or(&self.desired.want)
    }
}
