//! The side of the confined process.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Pid, getpid};
use tracing::{error, warn};
use truepeer_sys::process::fork_apart;

use super::Shown;
use super::own::name;
use super::service::serve;
use super::wire::{self, Answer, Message, Request, UNASKED};
use crate::server::signals::Bell;
use truepeer_cli::file::{ConfigSource, LoadedConfig};
use truepeer_config::plan::{AttachKey, CheckedAttach};
use truepeer_config::spec::Verbosity;
use truepeer_ops::admin::AttachmentDoc;
use truepeer_privilege::keeper::reap;

/// How long the admin socket waits for the state of attachments. A container engine may have to be asked.
const SHOWING: Duration = Duration::from_secs(10);
/// How long a drain waits for an answer, before it goes on waiting for attachments.
const ENDED: Duration = Duration::from_secs(1);
/// How long the end waits for attachments to be detached. Longer than they take, and less than the service
/// manager waits.
const ENDING: Duration = Duration::from_secs(20);
/// How long a request may wait for room in the socket, of which it needs little.
const ROOM: Duration = Duration::from_secs(1);
/// How long to wait for the keeper's end, once it is certain. It takes less than a millisecond.
const LAST: Duration = Duration::from_secs(1);

/// The keeper, before this process may have threads.
pub(in crate::server) struct ForkedKeeper {
    stream: UnixStream,
    process: Pid,
}

/// The process that attaches for this one. Dropped, it detaches what is left, and ends.
pub(in crate::server) struct AttachKeeper {
    line: Arc<Line>,
    /// The attachments that were applied last.
    keys: Vec<AttachKey>,
    is_draining: bool,
    /// [`Self::notice`] has told of the end.
    is_told: bool,
}

/// The connection to it.
pub(in crate::server) struct Line {
    stream: UnixStream,
    process: Pid,
    requests: Mutex<Requests>,
}

/// The requests under way.
#[derive(Default)]
struct Requests {
    last: u32,
    waiting: BTreeMap<u32, Sender<Answer>>,
    /// There will be no more answers.
    has_ended: bool,
}

impl ForkedKeeper {
    /// Forks it. Call it with one thread, before this process gives up what attaching needs. `loaded`: what
    /// it attaches first.
    ///
    /// # Errors
    /// It could not be forked.
    pub(in crate::server) fn start(source: &ConfigSource, loaded: &LoadedConfig) -> anyhow::Result<Self> {
        let (stream, there) = UnixStream::pair().context("socketpair")?;
        stream.set_write_timeout(Some(ROOM)).context("setsockopt(SO_SNDTIMEO)")?;
        let relay = getpid();
        let process = fork_apart(there.as_fd(), &[], |line| serve(line.into(), relay, source, loaded))?;
        Ok(Self { stream, process })
    }

    /// Starts the thread that reads its answers. `bell`: rung when an attachment has been detached, and when
    /// the keeper has ended.
    ///
    /// # Errors
    /// No thread could be started.
    pub(in crate::server) fn hear(self, bell: Bell) -> anyhow::Result<AttachKeeper> {
        let Self { stream, process } = self;
        let line = Arc::new(Line { stream, process, requests: Mutex::default() });
        let heard = Arc::clone(&line);
        thread::Builder::new()
            .name("attach".to_owned())
            .spawn(move || heard.hear(&bell))
            .context("can't start the thread that reads the attach keeper's answers")?;
        Ok(AttachKeeper { line, keys: Vec::new(), is_draining: false, is_told: false })
    }
}

impl AttachKeeper {
    /// Without a time limit: it takes as long as this process itself would need. If the keeper ends, it
    /// fails.
    pub(super) fn apply(
        &mut self,
        wanted: &[&CheckedAttach],
        verbosity: Verbosity,
    ) -> anyhow::Result<Vec<String>> {
        let keys: Vec<_> = wanted.iter().map(|attach| attach.key.clone()).collect();
        match self.line.ask(Request::Apply { keys: keys.clone(), verbosity }, None) {
            Ok(Answer::Changed(changes)) => {
                self.keys = keys;
                Ok(changes)
            }
            Ok(_) => bail!("the attach keeper has sent an unexpected answer"),
            Err(failure) if self.line.requests().has_ended => bail!("{failure:#}: restart truepeer"),
            Err(failure) => Err(failure),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        // The keeper knows their places, too.
        match self.line.ask(Request::Names, Some(SHOWING)) {
            Ok(Answer::Names(names)) => names,
            _ => self.keys.iter().map(name).collect(),
        }
    }

    pub(super) fn begin_take_over(&self, names: &[String]) {
        self.line.tell(Request::BeginTakeOver(names.to_vec()));
    }

    pub(super) fn end_take_over(&self) {
        self.line.tell(Request::EndTakeOver);
    }

    pub(super) fn hand_over(&mut self, names: &[String]) {
        self.line.tell(Request::HandOver(names.to_vec()));
        self.keys.retain(|key| !names.contains(&name(key)));
        self.is_draining = true;
    }

    pub(super) fn renew(&self) {
        self.line.tell(Request::Renew);
    }

    pub(super) fn drain(&mut self) {
        self.line.tell(Request::Drain);
        self.is_draining = true;
    }

    pub(super) fn have_ended(&self) -> bool {
        // While nothing drains, nobody waits for that.
        self.is_draining
            && match self.line.ask(Request::HaveEnded, Some(ENDED)) {
                Ok(Answer::Ended(ended)) => ended,
                // Without the keeper there is nothing to wait for.
                _ => self.line.requests().has_ended,
            }
    }

    pub(super) fn shown(&self) -> Shown {
        Shown::Keeper(Arc::clone(&self.line), self.keys.clone())
    }

    /// Logs that the keeper has ended by itself, once.
    pub(in crate::server) fn notice(&mut self) {
        if self.is_told || !self.line.requests().has_ended {
            return;
        }
        self.is_told = true;
        reap(self.line.process, LAST);
        error!(
            "the attach keeper (process {}) has ended by itself. The programs stay attached, reloads fail, and the end of truepeer detaches \
             nothing (truepeer attach detach does it): restart truepeer",
            self.line.process
        );
    }
}

impl Drop for AttachKeeper {
    fn drop(&mut self) {
        let ended = self.line.ask(Request::End, Some(ENDING));
        if let Err(failure) = ended
            && (self.is_draining || !self.keys.is_empty())
        {
            warn!("not detached: {failure:#}; truepeer attach detach --now does it");
        }
        reap(self.line.process, LAST);
    }
}

impl Line {
    /// The state of each attachment, read now; `None`: no answer in time.
    pub(super) fn read(&self) -> Option<Vec<AttachmentDoc>> {
        match self.ask(Request::Show, Some(SHOWING)) {
            Ok(Answer::Shown(all)) => Some(all),
            _ => None,
        }
    }

    /// Gives an order that has no answer. Later ones are carried out after it. If it fails, the keeper ends,
    /// and [`AttachKeeper::notice`] says so.
    fn tell(&self, order: Request) {
        let _ = self.send(&mut self.requests(), UNASKED, order);
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: Request, limit: Option<Duration>) -> anyhow::Result<Answer> {
        let (number, answer) = {
            let mut requests = self.requests();
            let (answers, answer) = mpsc::channel();
            requests.last = requests.last.checked_add(1).unwrap_or(UNASKED + 1);
            let number = requests.last;
            self.send(&mut requests, number, request)?;
            requests.waiting.insert(number, answers);
            (number, answer)
        };
        let answer = match limit {
            Some(limit) => answer.recv_timeout(limit),
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(Answer::Failed(words)) => Err(anyhow!(words)),
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                self.requests().waiting.remove(&number);
                bail!("the attach keeper (process {}) doesn't answer", self.process)
            }
            Err(RecvTimeoutError::Disconnected) => bail!(self.ended()),
        }
    }

    /// `requests` are locked, so that lines don't mix.
    fn send(&self, requests: &mut Requests, number: u32, request: Request) -> anyhow::Result<()> {
        if requests.has_ended {
            bail!(self.ended());
        }
        wire::send(&self.stream, number, request)
            .inspect_err(|_| {
                // A part of it may have been sent: the keeper must not take the next one for the rest.
                requests.has_ended = true;
                self.close();
            })
            .with_context(|| format!("can't ask the attach keeper (process {})", self.process))
    }

    /// Ends the keeper, which leaves everything attached.
    fn close(&self) {
        // Can't fail: the stream is connected.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Passes answers to those who wait for them.
    fn hear(&self, bell: &Bell) {
        let mut from = BufReader::new(&self.stream);
        while let Ok(Message { number, body }) = wire::receive(&mut from) {
            let waiting = self.requests().waiting.remove(&number);
            match waiting {
                Some(waiting) => _ = waiting.send(body),
                // Something was detached, or an answer comes too late, perhaps the one that a drain waits
                // for.
                None => bell.ring(),
            }
        }
        self.close();
        let mut requests = self.requests();
        requests.has_ended = true;
        requests.waiting.clear();
        drop(requests);
        bell.ring();
    }

    fn ended(&self) -> String {
        format!("the attach keeper (process {}) has ended", self.process)
    }
}
