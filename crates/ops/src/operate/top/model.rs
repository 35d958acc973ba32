//! What `top` shows, without a terminal.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::news::Snapshot;
use crate::admin::listing::SessionDoc;
use crate::admin::status::{ListenerDoc, StatusDoc};

/// How many rates the sparklines show.
const HISTORY: usize = 240;
/// Refusals count as new during so many answers.
pub(super) const RECENT: usize = 10;
/// How long a change of the process is mentioned.
const MENTIONED: Duration = Duration::from_secs(30);

/// The order of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Rate,
    Bytes,
    Age,
    Client,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Bytes => "bytes",
            Self::Age => "age",
            Self::Client => "client",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Bytes,
            Self::Bytes => Self::Age,
            Self::Age => Self::Client,
            Self::Client => Self::Rate,
        }
    }
}

/// What lies over the tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Popup {
    #[default]
    None,
    Help,
    /// A session as it was seen last, and whether it is still open.
    Details(Box<SessionDoc>, bool),
}

/// Values a second, newest first. `None`: nobody answered.
pub(super) type History = VecDeque<Option<u64>>;

/// What a listener did in each second of the last interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rates {
    pub(super) taken: u64,
    pub(super) refused: u64,
    pub(super) up: u64,
    pub(super) down: u64,
}

/// How often a reason was given.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    pub(super) total: u64,
    /// By answer, newest first.
    recent: VecDeque<u64>,
}

impl Refusals {
    pub(super) fn recent(&self) -> u64 {
        self.recent.iter().sum()
    }
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The last answer, and when it came.
    pub(super) answer: Option<(Instant, StatusDoc)>,
    sessions: Vec<SessionDoc>,
    /// Why the last question had no answer.
    pub(super) problem: Option<String>,
    /// The process before this one, and when it was noticed.
    changed: Option<(Instant, u32)>,
    pub(super) taken: History,
    pub(super) up: History,
    pub(super) down: History,
    /// By listener, in the order of the answer.
    pub(super) rates: Vec<Rates>,
    pub(super) refusals: BTreeMap<String, Refusals>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) shows_listeners: bool,
    /// The id of the chosen session, so that the choice follows it through the order.
    chosen: Option<String>,
    pub(super) popup: Popup,
    pub(super) is_over: bool,
}

impl Model {
    /// Takes an answer.
    pub(super) fn update(&mut self, now: Instant, Snapshot { status, sessions }: Snapshot) {
        let before = self.answer.take();
        if let Some((_, old)) = &before
            && old.pid != status.pid
        {
            self.changed = Some((now, old.pid));
        }
        // The counters of another process begin at 0.
        let before = before.filter(|(_, old)| old.pid == status.pid);
        let same = |listener: &ListenerDoc| {
            let (at, old) = before.as_ref()?;
            let old = old
                .listeners
                .iter()
                .find(|one| one.name() == listener.name() && one.protocol == listener.protocol)?;
            Some(Rates::between(old, listener, now.saturating_duration_since(*at)))
        };
        self.rates = status.listeners.iter().map(|listener| same(listener).unwrap_or_default()).collect();
        if before.is_some() {
            let sum = |of: fn(&Rates) -> u64| Some(self.rates.iter().map(of).sum());
            let (taken, up, down) =
                (sum(|rates| rates.taken), sum(|rates| rates.up), sum(|rates| rates.down));
            self.push(taken, up, down);
        } else {
            self.refusals.clear();
        }
        self.count_refusals(&status, before.is_some());
        if let Popup::Details(session, is_open) = &mut self.popup {
            let now = sessions.iter().find(|one| one.id == session.id);
            *is_open = now.is_some();
            now.into_iter().for_each(|now| **session = now.clone());
        }
        (self.problem, self.sessions) = (None, sessions);
        self.answer = Some((now, status));
    }

    /// Nobody has answered.
    pub(super) fn on_silence(&mut self, now: Instant, problem: String) {
        self.problem = Some(problem);
        self.changed = self.changed.filter(|(at, _)| now.saturating_duration_since(*at) < MENTIONED);
        self.push(None, None, None);
    }

    fn push(&mut self, taken: Option<u64>, up: Option<u64>, down: Option<u64>) {
        for (history, rate) in [(&mut self.taken, taken), (&mut self.up, up), (&mut self.down, down)] {
            history.push_front(rate);
            history.truncate(HISTORY);
        }
    }

    fn count_refusals(&mut self, status: &StatusDoc, is_same: bool) {
        let mut totals = BTreeMap::<&String, u64>::new();
        for (reason, times) in status.listeners.iter().flat_map(|listener| &listener.refusals) {
            *totals.entry(reason).or_default() += times;
        }
        for (reason, total) in totals {
            let known = self.refusals.entry(reason.clone()).or_default();
            known.recent.push_front(if is_same { total.saturating_sub(known.total) } else { 0 });
            known.recent.truncate(RECENT);
            known.total = total;
        }
    }

    /// The process before this one, while that is news.
    pub(super) fn process_before(&self) -> Option<u32> {
        let ((changed, pid), (answered, _)) = (self.changed?, self.answer.as_ref()?);
        (answered.saturating_duration_since(changed) < MENTIONED).then_some(pid)
    }

    /// How many sessions are listed, whatever the filter.
    pub(super) fn listed(&self) -> usize {
        self.sessions.len()
    }

    /// The sessions that match the filter, in order.
    pub(super) fn visible(&self) -> Vec<&SessionDoc> {
        let filter = self.filter.to_lowercase();
        let matches = |session: &&SessionDoc| filter.is_empty() || text(session).contains(&filter);
        let mut visible: Vec<_> = self.sessions.iter().filter(matches).collect();
        // The id makes the order stable from answer to answer.
        let bytes = |one: &SessionDoc| one.bytes_up + one.bytes_down;
        match self.sort {
            Sort::Rate => visible
                .sort_by_key(|one| (std::cmp::Reverse((one.rate_up + one.rate_down, bytes(one))), &one.id)),
            Sort::Bytes => visible.sort_by_key(|one| (std::cmp::Reverse(bytes(one)), &one.id)),
            Sort::Age => visible.sort_by(|one, other| {
                other.age_seconds.total_cmp(&one.age_seconds).then_with(|| one.id.cmp(&other.id))
            }),
            Sort::Client => visible.sort_by_key(|one| (one.client, one.sender, &one.id)),
        }
        visible
    }

    /// The place of the chosen session.
    pub(super) fn chosen_in(&self, visible: &[&SessionDoc]) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        visible.iter().position(|session| session.id == *chosen)
    }

    /// A key was typed.
    pub(super) fn on_key(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
        match key.code {
            KeyCode::Char('c') if is_control => self.is_over = true,
            KeyCode::Char(_) if is_control => {}
            code if self.is_typing => self.on_typed(code),
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                self.popup = if self.popup == Popup::Help { Popup::None } else { Popup::Help };
            }
            KeyCode::Esc | KeyCode::Enter if self.popup != Popup::None => self.popup = Popup::None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab => self.shows_listeners = !self.shows_listeners,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => {
                (self.is_typing, self.shows_listeners, self.popup) = (true, false, Popup::None)
            }
            KeyCode::Enter => self.show_details(),
            KeyCode::Down | KeyCode::Char('j') => self.choose(|at| at.map_or(0, |at| at + 1)),
            KeyCode::Up | KeyCode::Char('k') => self.choose(|at| at.map_or(0, |at| at.saturating_sub(1))),
            KeyCode::PageDown => self.choose(|at| at.map_or(0, |at| at + 10)),
            KeyCode::PageUp => self.choose(|at| at.map_or(0, |at| at.saturating_sub(10))),
            KeyCode::Home => self.choose(|_| 0),
            KeyCode::End => self.choose(|_| usize::MAX),
            _ => {}
        }
    }

    fn on_typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    /// Moves the choice: `to` gets the place of the chosen session.
    fn choose(&mut self, to: impl FnOnce(Option<usize>) -> usize) {
        let visible = self.visible();
        let place = to(self.chosen_in(&visible)).min(visible.len().saturating_sub(1));
        let chosen = visible.get(place).map(|session| session.id.clone());
        self.chosen = chosen;
    }

    /// Of the chosen session, else of the first.
    fn show_details(&mut self) {
        let visible = self.visible();
        let place = self.chosen_in(&visible).unwrap_or_default();
        let Some(session) = visible.get(place).map(|session| Box::new((*session).clone())) else { return };
        self.chosen = Some(session.id.clone());
        self.popup = Popup::Details(session, true);
    }
}

impl Rates {
    fn between(old: &ListenerDoc, new: &ListenerDoc, time: Duration) -> Self {
        let milliseconds = time.as_millis().max(1);
        let rate = |of: &dyn Fn(&ListenerDoc) -> u64| {
            let more = of(new).saturating_sub(of(old));
            u64::try_from(u128::from(more) * 1000 / milliseconds).unwrap_or(u64::MAX)
        };
        Self {
            taken: rate(&ListenerDoc::taken),
            refused: rate(&|listener| listener.refusals.values().sum()),
            up: rate(&|listener| listener.count("bytes_up")),
            down: rate(&|listener| listener.count("bytes_down")),
        }
    }
}

/// What a filter looks at.
fn text(session: &SessionDoc) -> String {
    let SessionDoc { id, listener, kind, stage, sender, .. } = session;
    let parties =
        [session.client, session.backend].map(|one| one.map(|one| one.to_string()).unwrap_or_default());
    let tags: String = session.tags.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    format!("{id} {listener} {kind} {stage} {sender} {}{tags}", parties.join(" ")).to_lowercase()
}
