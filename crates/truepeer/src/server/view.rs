//! What the admin socket shows of the running process, and what it may ask.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use truepeer_bpf::Full;
use truepeer_session::complaints::RecentComplaint;
use truepeer_session::counters::Counters;
use truepeer_session::{Journal, SessionList};

use super::attachments;
use super::process::Process;
use super::requests::Requests;
use super::upgrade;
use truepeer_ops::admin::{AttachmentDoc, ListenerView, Running, SpliceDoc, State};

/// Complaints are shown for this long.
const LATELY: Duration = Duration::from_secs(600);

/// A view that the server's thread brings up to date after each change.
pub(super) struct View {
    journal: Arc<Journal>,
    full: Option<Arc<Full>>,
    requests: Requests,
    shown: Mutex<Shown>,
}

struct Shown {
    state: State,
    listeners: Vec<ListenerView>,
    missing: Vec<String>,
    splice: Option<SpliceDoc>,
    sessions: Vec<Arc<dyn SessionList>>,
    attachments: attachments::Shown,
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
        };
        let journal = Arc::clone(&process.engines.journal);
        let full = process.engines.full();
        Arc::new(Self { journal, full, requests, shown: Mutex::new(shown) })
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_state(&self, state: State) {
        self.shown().state = state;
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

    fn sessions(&self) -> Vec<Arc<dyn SessionList>> {
        self.shown().sessions.clone()
    }

    fn splice(&self) -> Option<SpliceDoc> {
        self.shown().splice.clone()
    }

    fn made_by_kernel(&self) -> Vec<(&'static str, u64)> {
        let counters = self.full.as_ref().map(|full| full.counters());
        // Unreadable: they are not shown.
        counters.and_then(Result::ok).unwrap_or_default()
    }

    fn attachments(&self) -> Vec<AttachmentDoc> {
        let attachments = self.shown().attachments.clone();
        attachments.read()
    }

    fn complaints(&self) -> Vec<RecentComplaint> {
        self.journal.recent_complaints(LATELY, Instant::now())
    }

    fn reload(&self) -> Result<String, String> {
        self.requests.reload()
    }

    fn upgrade(&self, peer: UnixStream) {
        upgrade::give(peer, &self.requests);
    }
}
