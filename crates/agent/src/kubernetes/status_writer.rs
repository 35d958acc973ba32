//! Tells users what came of their annotations: brings conditions to the statuses, and publishes an event for
//! each change.
//!
//! By state, not by change: what could not be written is written when the API server answers again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::plan::Key;
use crate::statuses::{Name, State, StatusRow, StatusTable};

use super::conditions::{self, Condition};
use super::events::{self, Note};
use super::limit::Limit;
use super::pod::AnnotatedPod;
use super::whole;

/// Each request's limit, and the pause after one that failed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(5);
const COMPLAINTS: Duration = Duration::from_secs(60);
/// Looked at so often even if nothing changed.
const INTERVAL: Duration = Duration::from_secs(5);

/// The pods' conditions as the API server last sent them, or as they were written since.
#[derive(Default)]
pub(super) struct KnownConditions(Mutex<BTreeMap<Key, Option<Condition>>>);

impl KnownConditions {
    pub(super) fn note(&self, annotated: &AnnotatedPod) {
        self.locked().insert(annotated.uid.clone(), annotated.condition.clone());
    }

    pub(super) fn remove(&self, uid: &Key) {
        self.locked().remove(uid);
    }

    pub(super) fn keep(&self, listed: &BTreeSet<Key>) {
        self.locked().retain(|uid, _| listed.contains(uid));
    }

    fn written(&self, uid: &Key, condition: Option<Condition>) {
        if let Some(seen) = self.locked().get_mut(uid) {
            *seen = condition;
        }
    }

    /// No pod has the condition any more.
    fn is_clean(&self) -> bool {
        self.locked().values().all(Option::is_none)
    }

    fn of(&self, uid: &Key) -> Option<Option<Condition>> {
        self.locked().get(uid).cloned()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Option<Condition>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One pod: what was said, and what is being said.
struct PodReport {
    state: Option<State>,
    limit: Limit,
    notes: Vec<Note>,
    is_busy: bool,
    not_before: Option<Instant>,
}

impl PodReport {
    fn new(now: Instant) -> Self {
        Self { state: None, limit: Limit::new(now), notes: Vec::new(), is_busy: false, not_before: None }
    }

    /// A change of state may be worth an event.
    fn update(&mut self, state: &State, now: Instant) {
        if self.state.as_ref() == Some(state) {
            return;
        }
        let is_adopted = self.state.is_none() && matches!(state, State::Attached { .. });
        let note = Note::of(state, self.state.as_ref()).filter(|_| !is_adopted);
        self.notes
            .extend(note.filter(|note| self.limit.admits(&format!("{} {}", note.reason, note.text), now)));
        self.state = Some(state.clone());
    }
}

/// Tells all users.
pub(super) struct Told {
    pub(super) client: Client,
    pub(super) node: String,
    /// Conditions are removed where nothing is attached.
    pub(super) leaves: bool,
    pub(super) seen: Arc<KnownConditions>,
    pub(super) statuses: Arc<StatusTable>,
}

impl Told {
    /// For ever.
    pub(super) async fn run(self) {
        let mut reports: BTreeMap<Key, PodReport> = BTreeMap::new();
        let mut requests: JoinSet<(Key, bool)> = JoinSet::new();
        loop {
            let changed = self.statuses.changed();
            let lines = self.statuses.rows();
            self.start_requests(&lines, &mut reports, &mut requests);
            if self.leaves {
                let is_left = lines.values().all(|line| line.state == State::Idle) && self.seen.is_clean();
                self.statuses.set_left(is_left);
            }
            tokio::select! {
                () = changed => {}
                () = sleep(INTERVAL) => {}
                Some(done) = requests.join_next() => if let Ok((key, is_done)) = done
                    && let Some(report) = reports.get_mut(&key) {
                    report.is_busy = false;
                    report.not_before = (!is_done).then(|| Instant::now() + PAUSE);
                }
            }
        }
    }

    fn start_requests(
        &self,
        lines: &BTreeMap<Key, StatusRow>,
        reports: &mut BTreeMap<Key, PodReport>,
        requests: &mut JoinSet<(Key, bool)>,
    ) {
        let now = Instant::now();
        for ((key, reason), text) in self.statuses.take_refusals() {
            let note = Note::of_traffic(&reason, &text);
            // Not one for each sender: once for each reason, and again after a while.
            if let Some(report) = reports.get_mut(&key)
                && report.limit.admits(&reason, now)
            {
                report.notes.push(note);
            }
        }
        reports.retain(|key, report| report.is_busy || lines.contains_key(key));
        for (key, line) in lines {
            let report = reports.entry(key.clone()).or_insert_with(|| PodReport::new(now));
            report.update(&line.state, now);
            if report.is_busy || report.not_before.is_some_and(|time| now < time) {
                continue;
            }
            if let Some(work) = self.next(key, line, report) {
                report.is_busy = true;
                requests.spawn(work.run(self.client.clone(), self.node.clone(), self.seen.clone()));
            }
        }
    }

    fn next(&self, key: &Key, line: &StatusRow, report: &mut PodReport) -> Option<Work> {
        let before = self.seen.of(key)?;
        let wanted = match (Condition::of(&line.state), &before) {
            (Some(condition), before) if before.as_ref() != Some(&condition) => {
                Some(Writing::Write(condition))
            }
            (None, Some(_)) if self.leaves => Some(Writing::Remove),
            // Not removed otherwise: somebody may still look at it.
            (None, Some(before)) if *before != Condition::detached() => {
                Some(Writing::Write(Condition::detached()))
            }
            _ => None,
        };
        let condition = wanted.map(|wanted| (before, wanted));
        let notes = std::mem::take(&mut report.notes);
        let has_work = condition.is_some() || !notes.is_empty();
        has_work.then(|| Work { key: key.clone(), line: line.clone(), condition, notes })
    }
}

/// The same complaint at most once a minute, with how many there were: each pod has it.
fn complain(what: &'static str, why: &str) {
    static LAST: Mutex<BTreeMap<&str, (Instant, u64)>> = Mutex::new(BTreeMap::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    match last.get_mut(what) {
        Some((time, count)) if now.duration_since(*time) < COMPLAINTS => *count += 1,
        other => {
            let more = other.map_or(0, |(_, count)| *count);
            tracing::warn!(more_before = more, "{what}: {why}");
            last.insert(what, (now, 0));
        }
    }
}

/// What is done with the condition.
enum Writing {
    Write(Condition),
    Remove,
}

/// The next requests for one pod.
struct Work {
    key: Key,
    line: StatusRow,
    /// With the one before.
    condition: Option<(Option<Condition>, Writing)>,
    notes: Vec<Note>,
}

impl Work {
    /// Whether the condition was written. Events that are lost stay lost.
    async fn run(self, client: Client, node: String, seen: Arc<KnownConditions>) -> (Key, bool) {
        let name = &self.line.name;
        let mut is_done = true;
        if let Some((before, condition)) = self.condition {
            let namespace = name.namespace.as_deref().unwrap_or("default");
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            let writing = async {
                match condition {
                    Writing::Remove => conditions::remove(&pods, name, &self.key).await.map(|()| None),
                    Writing::Write(condition) => {
                        conditions::write(&pods, name, &self.key, before.as_ref(), &condition).await?;
                        Ok(Some(condition))
                    }
                }
            };
            match timeout(PATIENCE, writing).await {
                Ok(Ok(written)) => seen.written(&self.key, written),
                // It was deleted, or there is another of that name.
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => is_done = false,
                Ok(Err(error)) => {
                    complain("writing conditions", &whole(&error));
                    is_done = false;
                }
                Err(_) => {
                    complain("writing conditions", "no answer");
                    is_done = false;
                }
            }
        }
        for note in self.notes {
            // The next condition does not wait for them: it may say that the pod is not attached any more.
            tokio::spawn(publish(client.clone(), node.clone(), name.clone(), self.key.clone(), note));
        }
        (self.key, is_done)
    }
}

async fn publish(client: Client, node: String, name: Name, uid: Key, note: Note) {
    if let Ok(Err(error)) = timeout(PATIENCE, events::publish(client, &node, &name, &uid, &note)).await {
        complain("publishing events", &whole(&error));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use serde_json::{Value, json};

    const GIVEN_UP: &str = "the agent has given an event up";

    /// It takes conditions, and never answers an event. Tells messages of conditions.
    fn api_server() -> (SocketAddr, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let tell = tell.clone();
                std::thread::spawn(move || serve(&stream.unwrap(), &tell));
            }
        });
        (address, told)
    }

    fn serve(mut stream: &TcpStream, tell: &Sender<String>) -> Option<()> {
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        while lines.read_line(&mut first).is_ok_and(|length| length > 0) {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                lines.read_line(&mut line).ok()?;
                let value = line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned);
                length = value.and_then(|value| value.trim().parse().ok()).unwrap_or(length);
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body).ok()?;
            if first.starts_with("POST") {
                let _ = lines.read_line(&mut first);
                return tell.send(GIVEN_UP.to_owned()).ok();
            }
            let patch: Value = serde_json::from_slice(&body).ok()?;
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}).to_string();
            let head = format!("Content-Type: application/json\r\nContent-Length: {}", pod.len());
            write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{pod}").ok()?;
            tell.send(patch["status"]["conditions"][0]["message"].as_str()?.to_owned()).ok()?;
            first.clear();
        }
        Some(())
    }

    #[tokio::test]
    async fn an_event_that_is_not_answered_holds_up_no_condition() {
        let (address, told) = api_server();
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let (statuses, seen) = (Arc::new(StatusTable::default()), Arc::new(KnownConditions::default()));
        seen.locked().insert("1".to_owned(), None);
        let report = Told { client, node: "a".to_owned(), leaves: false, seen, statuses: statuses.clone() };
        tokio::spawn(report.run());
        for why in ["first", "second"] {
            let name = Name { namespace: Some("default".to_owned()), name: "web".to_owned() };
            let state = State::Failed { why: why.to_owned(), kept: None };
            statuses.replace([("1".to_owned(), StatusRow { name, state, netns: None })].into());
            let message = loop {
                match told.try_recv() {
                    Ok(message) => break message,
                    Err(_) => sleep(Duration::from_millis(5)).await,
                }
            };
            assert_eq!(message, why);
        }
    }
}
