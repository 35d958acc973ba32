//! The side of the confined process.

use std::io::{self, BufReader};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rustix::net::RecvFlags;
use rustix::process::Pid;
use tracing::{error, warn};
use truepeer_sys::process::fork_apart;

use super::Shown;
use super::own::name;
use super::service::serve;
use super::wire::{self, Answer, Request};
use crate::admin::AttachmentDoc;
use crate::file::ConfigSource;
use crate::keeper::reap;
use crate::plan::CheckedAttach;

/// How long an answer may take. A container engine may have to be asked, and programs be loaded.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for the keeper's end, once it is certain. It takes less than a millisecond.
const LAST: Duration = Duration::from_secs(1);
/// How often it is asked whether the last connection of a leaving attachment has ended.
const INTERVAL: Duration = Duration::from_millis(200);

/// The process that attaches for this one. Dropped, it detaches what is left, and ends.
pub(in crate::server) struct AttachKeeper {
    line: Arc<Line>,
    /// What it has attached for this process.
    names: Vec<String>,
    is_draining: bool,
}

/// The connection to it.
pub(in crate::server) struct Line {
    stream: UnixStream,
    process: Pid,
    /// One request is under way at a time.
    answers: Mutex<BufReader<UnixStream>>,
    has_ended: AtomicBool,
    /// [`AttachKeeper::notice`] has told of the end.
    is_told: AtomicBool,
}

impl AttachKeeper {
    /// Forks it. Call it with one thread, before this process gives up what attaching needs.
    ///
    /// # Errors
    /// It could not be forked.
    pub(in crate::server) fn start(source: &ConfigSource) -> anyhow::Result<Self> {
        let (stream, there) = UnixStream::pair().context("socketpair")?;
        stream.set_read_timeout(Some(PATIENCE)).context("setsockopt(SO_RCVTIMEO)")?;
        let process = fork_apart(there.as_fd(), |line| serve(&line.into(), source))?;
        let answers = Mutex::new(BufReader::new(stream.try_clone().context("dup")?));
        let (has_ended, is_told) = (AtomicBool::new(false), AtomicBool::new(false));
        let line = Arc::new(Line { stream, process, answers, has_ended, is_told });
        Ok(Self { line, names: Vec::new(), is_draining: false })
    }

    pub(super) fn apply(&mut self, wanted: &[&CheckedAttach]) -> anyhow::Result<Vec<String>> {
        let names: Vec<_> = wanted.iter().map(|attach| name(&attach.key)).collect();
        match self.line.ask(&Request::Apply(names.clone()))? {
            Answer::Changed(changes) => {
                self.names = names;
                Ok(changes)
            }
            other => bail!("the attach keeper says {other:?}"),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    pub(super) fn begin_take_over(&self, names: &[String]) {
        self.line.tell(&Request::BeginTakeOver(names.to_vec()));
    }

    pub(super) fn end_take_over(&self) {
        self.line.tell(&Request::EndTakeOver);
    }

    pub(super) fn hand_over(&mut self, names: &[String]) {
        self.line.tell(&Request::HandOver(names.to_vec()));
        self.begin_drain();
    }

    pub(super) fn renew(&self) {
        self.line.tell(&Request::Renew);
    }

    pub(super) fn drain(&mut self) {
        self.line.tell(&Request::Drain);
        self.begin_drain();
    }

    fn begin_drain(&mut self) {
        self.names.clear();
        self.is_draining = true;
    }

    pub(super) fn have_ended(&self) -> bool {
        // Without the keeper there is nothing to wait for.
        self.is_draining && !matches!(self.line.ask(&Request::HaveEnded), Ok(Answer::Ended(false)))
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.is_draining.then(|| Instant::now() + INTERVAL)
    }

    pub(super) fn shown(&self) -> Shown {
        Shown::Keeper(Arc::clone(&self.line))
    }

    /// Readable when [`Self::notice`] may have something to tell.
    pub(in crate::server) fn watched(&self) -> Option<BorrowedFd<'_>> {
        (!self.line.is_told.load(Ordering::Relaxed)).then(|| self.line.stream.as_fd())
    }

    /// Logs that the keeper has ended by itself, once.
    pub(in crate::server) fn notice(&self) {
        if !self.line.is_alone() || self.line.is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        reap(self.line.process, LAST);
        error!(
            "the attach keeper (process {}) has ended by itself: what is attached stays so, but no reload changes it, and nobody detaches it \
             at the end (truepeer attach detach does); restart truepeer",
            self.line.process
        );
    }
}

impl Drop for AttachKeeper {
    fn drop(&mut self) {
        self.line.is_told.store(true, Ordering::Relaxed);
        if let Err(failure) = self.line.ask(&Request::End) {
            warn!("not detached: {failure:#}; truepeer attach detach --now does it");
        }
        reap(self.line.process, LAST);
    }
}

impl Line {
    /// The state of each attachment, read now. Without the keeper there is none to show.
    pub(super) fn read(&self) -> Vec<AttachmentDoc> {
        match self.ask(&Request::Show) {
            Ok(Answer::Shown(all)) => all,
            _ => Vec::new(),
        }
    }

    fn tell(&self, request: &Request) {
        if let Err(failure) = self.ask(request) {
            error!("{request:?}: {failure:#}");
        }
    }

    fn ask(&self, request: &Request) -> anyhow::Result<Answer> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended.load(Ordering::Relaxed) {
            bail!("the attach keeper (process {}) has ended: restart truepeer", self.process);
        }
        let answer = wire::send(&self.stream, request).and_then(|()| wire::receive(&mut *answers));
        match answer {
            Ok(Answer::Failed(words)) => Err(anyhow!(words)),
            Ok(answer) => Ok(answer),
            Err(failure) => {
                // An answer that comes later would be taken for the next one.
                self.has_ended.store(true, Ordering::Relaxed);
                Err(failure).with_context(|| format!("the attach keeper (process {})", self.process))
            }
        }
    }

    /// Whether the keeper has ended. If a request is under way, its thread finds out.
    fn is_alone(&self) -> bool {
        let Ok(_answers) = self.answers.try_lock() else { return false };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.stream, &mut [0; 1], flags);
        let is_alone = match peeked.map_err(io::Error::from) {
            Ok((_, length)) => length == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        self.has_ended.fetch_or(is_alone, Ordering::Relaxed);
        is_alone
    }
}
