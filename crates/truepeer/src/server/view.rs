//! What the admin socket shows of the running process, and what it may ask.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use truepeer_policy::{BannedPrefix, Bans};
use truepeer_session::complaints::RecentComplaint;
use truepeer_session::counters::Counters;
use truepeer_session::{Journal, SessionList};

use super::attachments;
use super::from_here::from_here;
use super::process::Process;
use super::requests::Requests;
use super::upgrade;
use truepeer_config::plan::CheckedListener;
use truepeer_config::spec::Protocol;
use truepeer_ops::admin::{
    AttachmentDoc, BanChange, BanFailure, FromHere, ListenerView, Running, SpliceDoc, State,
};

/// Complaints are shown for this long.
const LATELY: Duration = Duration::from_secs(600);

/// A view that the server's thread brings up to date after each change.
pub(super) struct View {
    journal: Arc<Journal>,
    requests: Requests,
    bans: Arc<Bans>,
    /// A new process reads who is banned, so nothing of it may change.
    is_upgrading: AtomicBool,
    shown: Mutex<Shown>,
}

struct Shown {
    state: State,
    listeners: Vec<ListenerView>,
    missing: Vec<String>,
    splice: Option<SpliceDoc>,
    sessions: Vec<Arc<dyn SessionList>>,
    attachments: attachments::Shown,
    running: Vec<Arc<CheckedListener>>,
}

impl View {
    pub(super) fn new(process: &Process, requests: Requests) -> Arc<Self> {
        let shown = Shown {
            state: State::Starting,
            listeners: Vec::new(),
            missing: Vec::new(),
            splice: None,
            sessions: Vec::new(),
            attachments: process.attachments.shown(),
            running: Vec::new(),
        };
        let journal = Arc::clone(&process.engines.journal);
        let (bans, is_upgrading) = (Arc::clone(&process.engines.bans), AtomicBool::new(false));
        Arc::new(Self { journal, requests, bans, is_upgrading, shown: Mutex::new(shown) })
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_state(&self, state: State) {
        self.shown().state = state;
    }

    /// Whether a new process takes over.
    pub(super) fn set_upgrading(&self, is_upgrading: bool) {
        // With the lock, so that a change is made before, or not at all.
        let _shown = self.shown();
        self.is_upgrading.store(is_upgrading, Ordering::Release);
    }

    /// Listeners that are closed now stay: their counters do, too.
    pub(super) fn update(&self, process: &Process) {
        let open = process.listeners();
        let mut shown = self.shown();
        for listener in &mut shown.listeners {
            listener.is_open = false;
        }
        shown.listeners.retain(|known| open.iter().all(|listener| listener.id != known.id));
        shown.listeners.extend(open);
        shown.missing = process.missing();
        shown.splice = process.engines.splice();
        shown.sessions = process.engines.sessions();
        shown.attachments = process.attachments.shown();
        shown.running = process.engines.before().running;
    }
}

impl Running for View {
    fn state(&self) -> State {
        self.shown().state.clone()
    }

    fn counters(&self) -> &Counters {
        &self.journal.counters
    }

    fn listeners(&self) -> Vec<ListenerView> {
        self.shown().listeners.clone()
    }

    fn missing(&self) -> Vec<String> {
        self.shown().missing.clone()
    }

    fn trials(&self, view: &ListenerView) -> Vec<FromHere> {
        if view.protocol != Protocol::Tcp || !view.is_open || view.site.is_some() {
            return Vec::new();
        }
        let shown = self.shown();
        let is_it = |listener: &&Arc<CheckedListener>| {
            listener.config.protocol == Protocol::Tcp && view.addresses.contains(&listener.key.address)
        };
        shown
            .running
            .iter()
            .find(is_it)
            .map_or_else(Vec::new, |listener| from_here(listener, &view.addresses))
    }

    fn sessions(&self) -> Vec<Arc<dyn SessionList>> {
        self.shown().sessions.clone()
    }

    fn splice(&self) -> Option<SpliceDoc> {
        self.shown().splice.clone()
    }

    fn attachments(&self) -> Vec<AttachmentDoc> {
        let attachments = self.shown().attachments.clone();
        attachments.read()
    }

    fn complaints(&self) -> Vec<RecentComplaint> {
        self.journal.recent_complaints(LATELY, Instant::now())
    }

    fn bans(&self) -> &Bans {
        &self.bans
    }

    fn change_bans(&self, change: BanChange) -> Result<usize, BanFailure> {
        let is_set = matches!(change, BanChange::Set(_));
        let changed = {
            let _shown = self.shown();
            if self.is_upgrading.load(Ordering::Acquire) {
                return Err(BanFailure::Upgrading);
            }
            change.make(&self.bans).map_err(BanFailure::Refused)?
        };
        if is_set {
            self.requests.on_banned();
        }
        Ok(changed)
    }

    fn note_of_ban(&self, clients: BannedPrefix) -> Option<String> {
        let shown = self.shown();
        let listener = shown.running.iter().find(|listener| listener.policy.has_sender_in(clients))?;
        let listener = listener.key.address;
        Some(format!(
            "{clients} has a sender of {listener} (--allow): the clients that it names are served as before; ban those"
        ))
    }

    fn reload(&self) -> Result<String, String> {
        self.requests.reload()
    }

    fn upgrade(&self, peer: UnixStream) {
        upgrade::give(peer, &self.requests);
    }
}
