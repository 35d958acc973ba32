//! The side of the process that parses what the network sends.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use truepeer_session::listening::{BY_OTHER, ListenOptions, OtherListens, listen_by};
use truepeer_sys::CallError;
use truepeer_sys::process::fork_apart;
use truepeer_sys::socket::share_ports_by;
use truepeer_sys::udp::grow_later_by;

use super::owner::Owner;
use super::permitted::Permitted;
use super::records::{NeedRecord, of_records};
use super::service::{Service, serve};
use super::wire::{self, Answer, MOST_DESCRIPTORS, MOST_NEEDS, Received, Request};
use truepeer_routes::apply::ApplyOutcome;
use truepeer_routes::plan::RoutePlan;

/// How long a change of rules, or the start, may take. It takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a worker waits for a port. Its other sessions wait meanwhile.
const SHORT: Duration = Duration::from_millis(500);
/// How long to wait for the keeper's end, once it is certain. It takes less than a millisecond.
pub(super) const LAST: Duration = Duration::from_secs(1);

/// This process's keeper.
#[derive(Debug, Clone)]
pub struct Keeper(Arc<Line>);

#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    process: Pid,
    /// The number of the last request. One request is under way at a time.
    number: Mutex<u32>,
    has_ended: AtomicBool,
    /// [`Keeper::notice`] has told of the end.
    is_told: AtomicBool,
}

impl Keeper {
    /// Forks it. `confine` makes it give up what it does not need, and returns what it could not give up.
    /// `rules_stay`: asked when this process has ended without a word. Call it with one thread, before this
    /// process gives up its own capabilities.
    ///
    /// # Errors
    /// It could not be forked or confined.
    pub(crate) fn start(
        permitted: Permitted,
        rules_stay: Box<dyn Fn() -> bool>,
        confine: impl FnOnce() -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<(Self, Vec<String>)> {
        let (socket, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context("socketpair")?;
        let relay = getpid();
        let process = fork_apart(there.as_fd(), &[], |line| {
            serve(&line, &Service { permitted, relay: Owner::new(relay), rules_stay }, confine)
        })?;
        drop(there);
        let line = Line {
            socket,
            process,
            number: Mutex::new(0),
            has_ended: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
        };
        let keeper = Self(Arc::new(line));
        match keeper.0.answer(0, Instant::now() + PATIENCE) {
            Ok((Answer::Ready { missing }, _)) => Ok((keeper, missing)),
            answer => {
                keeper.end();
                Err(answer
                    .and_then(|(answer, _)| into_failure(answer))
                    .map_or_else(|error| error, |other| anyhow!("it says {other:?}")))
            }
        }
    }

    /// Makes it bind sockets for [`truepeer_sys::socket::bind_beside_listeners`].
    pub(crate) fn share_ports(&self) {
        let keeper = self.clone();
        share_ports_by(Box::new(move |socket, address| {
            // Every error means the same to a session: it uses another port.
            keeper.share(socket, address).map_err(|_| Errno::ADDRINUSE)
        }));
    }

    /// Makes it grow buffers for [`truepeer_sys::udp::grow_later`].
    pub(crate) fn grow_buffers(&self) {
        let keeper = self.clone();
        grow_later_by(Box::new(move |sockets, bytes| keeper.0.grow(sockets, bytes)));
    }

    /// Makes it open listening sockets for [`truepeer_session::listening::listen`].
    pub(crate) fn listen(&self) {
        listen_by(Box::new(self.clone()));
    }

    /// See [`truepeer_routes::change::add`].
    pub(crate) fn add(&self, plan: &RoutePlan, sweeps: bool) -> anyhow::Result<ApplyOutcome> {
        let needs: Vec<_> = plan.items.iter().map(|item| NeedRecord::from(&item.need)).collect();
        if needs.len() > MOST_NEEDS {
            bail!(
                "{} rules and routes are too many, expected at most {MOST_NEEDS}: make them by `truepeer routes apply`, and use --routes manual",
                needs.len()
            );
        }
        match self.0.ask(&Request::Add { needs, sweeps }, &[], PATIENCE)? {
            Answer::Added(records) => {
                of_records(&plan.items, records).ok_or_else(|| anyhow!("the keeper's answer is another's"))
            }
            other => Err(unexpected(other)),
        }
    }

    /// See [`truepeer_routes::change::remove_unused`].
    pub(crate) fn remove_unused(&self) -> anyhow::Result<usize> {
        match self.0.ask(&Request::RemoveUnused, &[], PATIENCE)? {
            Answer::Removed(count) => Ok(count),
            other => Err(unexpected(other)),
        }
    }

    fn share(&self, socket: BorrowedFd<'_>, address: SocketAddr) -> anyhow::Result<()> {
        match self.0.ask(&Request::Share { address }, &[socket], SHORT)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Readable when [`Self::notice`] may have something to tell.
    pub fn watched(&self) -> Option<BorrowedFd<'_>> {
        (!self.0.is_told.load(Ordering::Relaxed)).then(|| self.0.socket.as_fd())
    }

    /// Logs that the keeper has ended by itself, once.
    pub fn notice(&self) {
        if !self.0.is_alone() || self.0.is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        // The kernel closes its socket before it is a child to wait for.
        reap(self.0.process, LAST);
        tracing::error!(
            "the keeper (process {}) has ended by itself: connections are served on, but nobody puts routing rules back or removes them \
             any more, a reload can't open listeners, and new UDP flows have the buffers of net.core.rmem_max; restart truepeer",
            self.0.process
        );
    }

    /// Ends it. It changes nothing any more.
    pub fn end(&self) {
        self.0.is_told.store(true, Ordering::Relaxed);
        let _ = self.0.ask(&Request::End, &[], LAST);
        reap(self.0.process, LAST);
    }
}

impl OtherListens for Keeper {
    fn listen(&self, address: SocketAddr, options: ListenOptions) -> Result<OwnedFd, CallError> {
        let ListenOptions { reuse_port, transparent, v6_only } = options;
        let answer =
            self.0.ask_all(&Request::Listen { address, reuse_port, transparent, v6_only }, &[], PATIENCE);
        let (answer, mut sockets) = answer.map_err(|_| NO_ANSWER)?;
        is_done(answer)?;
        sockets.pop().ok_or(NO_ANSWER)
    }

    fn listen_locally(&self, socket: BorrowedFd<'_>, backlog: i32) -> Result<(), CallError> {
        is_done(self.0.ask(&Request::ListenLocally { backlog }, &[socket], PATIENCE).map_err(|_| NO_ANSWER)?)
    }
}

const NO_ANSWER: CallError = CallError { call: BY_OTHER, errno: Errno::PIPE };

/// The answer to a request for a listening socket.
fn is_done(answer: Answer) -> Result<(), CallError> {
    /// Those that [`truepeer_session::listening::listen`] names.
    const CALLS: [&str; 8] = [
        "socket",
        "setsockopt(IPV6_V6ONLY)",
        "setsockopt(SO_REUSEADDR)",
        "setsockopt(SO_REUSEPORT)",
        "setsockopt(IP_TRANSPARENT)",
        "setsockopt(IPV6_TRANSPARENT)",
        "bind",
        "listen",
    ];
    match answer {
        Answer::Done => Ok(()),
        Answer::Failed { words, errno } => {
            let call = CALLS.into_iter().find(|call| *call == words).unwrap_or(BY_OTHER);
            Err(CallError { call, errno: Errno::from_raw_os_error(errno) })
        }
        _ => Err(NO_ANSWER),
    }
}

/// What a helper process says first: [`Answer::Ready`], or an error.
pub(super) fn greeting(line: BorrowedFd<'_>) -> anyhow::Result<Answer> {
    anyhow::ensure!(wait_readable(line, PATIENCE), "it does not answer");
    match wire::receive(line, RecvFlags::DONTWAIT)? {
        Received::Message { body, .. } => into_failure(body),
        Received::Bad(reason) => Err(anyhow!("it says {reason}")),
        Received::End => Err(anyhow!("it has ended")),
    }
}

/// Waits for the end of a process, so that it doesn't outlive this one.
pub fn reap(process: Pid, limit: Duration) {
    let deadline = Instant::now() + limit;
    while let Ok(None) = waitpid(Some(process), WaitOptions::NOHANG) {
        if Instant::now() >= deadline {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the descriptor is readable, or becomes so in time.
pub(super) fn wait_readable(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap_or_default();
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    matches!(retry_on_intr(|| poll(&mut polled, Some(&limit))), Ok(1))
}

impl Line {
    fn ask(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> anyhow::Result<Answer> {
        self.ask_all(request, descriptors, limit).map(|(answer, _)| answer)
    }

    /// As [`Self::ask`], with the descriptors of the answer.
    fn ask_all(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> anyhow::Result<(Answer, Vec<OwnedFd>)> {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended.load(Ordering::Relaxed) {
            bail!(self.ended());
        }
        *number = number.wrapping_add(1).max(1);
        let deadline = Instant::now() + limit;
        wire::send(self.socket.as_fd(), *number, request, descriptors)
            .with_context(|| format!("can't ask the keeper (process {})", self.process))?;
        self.answer(*number, deadline)
    }

    /// Has buffers grown, without waiting. The sockets stay as they are if the keeper is late, so that its
    /// queue has room for requests with an answer: the kernel calls a socket writable until a quarter of
    /// its queue is used.
    fn grow(&self, sockets: &[BorrowedFd<'_>], bytes: usize) {
        for some in sockets.chunks(MOST_DESCRIPTORS) {
            let mut polled = [PollFd::new(&self.socket, PollFlags::OUT)];
            if !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1)) {
                return;
            }
            // Fails if the keeper has ended, which is logged elsewhere.
            let _ = wire::send(self.socket.as_fd(), 0, &Request::Grow { bytes }, some);
        }
    }

    /// Waits for the answer with this number. Earlier ones came too late.
    fn answer(&self, number: u32, deadline: Instant) -> anyhow::Result<(Answer, Vec<OwnedFd>)> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut polled, Some(&left)))? == 0 {
                bail!("the keeper (process {}) doesn't answer", self.process);
            }
            match wire::receive(self.socket.as_fd(), RecvFlags::DONTWAIT) {
                Ok(Received::Message { number: of, body, descriptors }) if of == number => {
                    return Ok((body, descriptors));
                }
                Ok(Received::Message { .. }) => {}
                Ok(Received::Bad(reason)) => bail!("the keeper (process {}) says {reason}", self.process),
                Ok(Received::End) | Err(_) => {
                    self.has_ended.store(true, Ordering::Relaxed);
                    bail!(self.ended());
                }
            }
        }
    }

    fn ended(&self) -> String {
        format!("the keeper (process {}) has ended", self.process)
    }

    /// Whether the keeper has ended. If a request is under way, its thread finds out.
    fn is_alone(&self) -> bool {
        let Ok(_number) = self.number.try_lock() else { return false };
        loop {
            match wire::receive::<Answer>(self.socket.as_fd(), RecvFlags::DONTWAIT) {
                // Too late.
                Ok(Received::Message { .. } | Received::Bad(_)) => {}
                Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => return false,
                Ok(Received::End) | Err(_) => {
                    self.has_ended.store(true, Ordering::Relaxed);
                    return true;
                }
            }
        }
    }
}

fn unexpected(answer: Answer) -> anyhow::Error {
    into_failure(answer).map_or_else(|error| error, |other| anyhow!("the keeper says {other:?}"))
}

pub(super) fn into_failure(answer: Answer) -> anyhow::Result<Answer> {
    match answer {
        Answer::Failed { words, .. } => Err(anyhow!(words)),
        Answer::Refused(reason) => Err(anyhow!("the keeper refuses: {reason}")),
        other => Ok(other),
    }
}
