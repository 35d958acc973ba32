//! The supervisor: one thread that answers calls and never blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::getpeername;
use rustix::net::sockopt::socket_cookie;
use truepeer_handover::{
    AfterWait, Late, ListenerAddr, NO_CENSUS, Name, Names, RunRules, RunSettings, SocketDiag, SocketId,
    WakeUp,
};
use truepeer_policy::HeaderRule;
use truepeer_session::Advise;
use truepeer_sys::marked;
use truepeer_sys::process::{descriptor_of, may_trace};
use truepeer_sys::seccomp::{Answer, Notification, Notifier, calls};

use super::caller::{descriptor_for, write_address};
use super::callers::Callers;
use super::guard::Ending;
use super::journal::SupervisorLog;
use super::listener::{SupervisedListener, SupervisedListeners};
use super::parked::Parked;
use super::pollers::{Obstacle, Pollers};
use super::ready::Ready;
use super::relation::Relation;
use super::ringer::{NotWoken, Ringer};
use super::siblings::Siblings;
use super::watch::{Watch, WatchedEvent};

/// How long the kernel may hold a connection for its first data. After that the supervisor waits for the
/// header.
const DEFER: Duration = Duration::from_secs(3);
/// How often parked calls are checked. A signal waits at most this long.
const PARKED_PERIOD: Duration = Duration::from_millis(100);
/// How often the program is woken again for connections that it has not accepted.
const READY_PERIOD: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    pub(super) notifier: Notifier,
    pub(super) watch: Watch,
    pub(super) rules: RunRules,
    pub(super) wake: WakeUp,
    pub(super) listeners: SupervisedListeners,
    pub(super) late: Late<Arc<SupervisedListener>>,
    pub(super) ready: Ready,
    /// Connections that have been silent, by thread and descriptor.
    pub(super) after_wait: AfterWait<(i32, i32)>,
    pub(super) parked: Parked,
    pub(super) siblings: Siblings,
    pub(super) callers: Callers,
    pub(super) names: Arc<Names>,
    pub(super) census: SocketDiag,
    pub(super) ringer: Ringer,
    pub(super) journal: SupervisorLog,
    /// How many connections may wait, for a header or for the program.
    pub(super) most_held: usize,
    relation: Relation,
    looked_after: Instant,
    woken: Instant,
}

impl Supervisor {
    pub(super) fn new(
        settings: &RunSettings,
        notifier: Notifier,
        relation: Relation,
        names: Names,
        open_files: u64,
        advise: Advise,
    ) -> anyhow::Result<Self> {
        let watch = Watch::new(&notifier, &relation)?;
        // A client without a header may wait for the program to speak first, so its connection must not be
        // held.
        let everybody_speaks = settings.header == HeaderRule::Require && settings.exceptions.is_empty();
        let listeners = SupervisedListeners::new(
            settings.listeners.clone(),
            everybody_speaks.then_some(DEFER),
            settings.has_optional(),
        );
        let (wake, names) = (names.wake_up(), Arc::new(names));
        let ready = Ready::default();
        let mut census = SocketDiag::new();
        if !census.is_answered() {
            tracing::warn!("{NO_CENSUS}");
        }
        let journal = SupervisorLog::new(Some(advise));
        let may_trace = may_trace().map_err(Obstacle::Forbidden);
        if let Err(obstacle) = may_trace {
            journal.on_may_not_trace(obstacle);
        }
        Ok(Self {
            late: Late::new(watch.as_fd())?,
            rules: RunRules::new(settings.clone()),
            ringer: Ringer::start(wake.clone(), ready.counts(), Arc::clone(&names), Pollers::new(may_trace))?,
            wake,
            listeners,
            ready,
            after_wait: AfterWait::default(),
            parked: Parked::default(),
            siblings: Siblings::default(),
            callers: Callers::default(),
            names,
            census,
            journal,
            // The other half is for connections on their way.
            most_held: usize::try_from(open_files / 2).unwrap_or(usize::MAX).clamp(16, 65_536),
            notifier,
            watch,
            relation,
            looked_after: Instant::now(),
            woken: Instant::now(),
        })
    }

    /// Answers calls until the program and all its children have ended.
    pub(super) fn run(mut self) -> anyhow::Result<Ending> {
        loop {
            // Late connections have their own epoll, which is nested in the watch.
            let decided = self.late.turn(&self.rules, &self.wake, self.limit())?;
            decided.into_iter().for_each(|decided| self.on_decided(decided));
            if let Some(ending) = self.turn()? {
                // Beside the library, most programs of the family never need the supervisor.
                if !self.relation.is_beside() || self.journal.has_handed_over() {
                    self.journal.on_end();
                }
                return Ok(ending);
            }
            self.look_after(Instant::now());
        }
    }

    fn limit(&self) -> Option<Duration> {
        let parked = (!self.parked.is_empty()).then_some(PARKED_PERIOD);
        let ready = (self.ready.len() > 0).then_some(READY_PERIOD);
        [parked.or(ready), self.after_wait.limit()].into_iter().flatten().min()
    }

    fn turn(&mut self) -> anyhow::Result<Option<Ending>> {
        for event in self.watch.wait(&self.notifier, Some(Duration::ZERO))? {
            match event {
                WatchedEvent::Call => self.on_call()?,
                WatchedEvent::Life => {
                    if let Some(ending) = self.relation.turn() {
                        return Ok(Some(ending));
                    }
                }
                WatchedEvent::Guard => {
                    if let Some(ending) = self.relation.on_guard() {
                        return Ok(Some(ending));
                    }
                }
                WatchedEvent::NobodyLeft => return Ok(self.relation.on_nobody_left()),
                WatchedEvent::Socket(listener) => self.serve_parked(listener),
            }
        }
        Ok(None)
    }

    fn on_call(&mut self) -> anyhow::Result<()> {
        let Some(call) = self.notifier.receive()? else { return Ok(()) };
        if call.is_foreign {
            self.journal.on_foreign(call.thread);
            self.answer(&call, Answer::Fail(Errno::NOSYS));
            return Ok(());
        }
        match call.call {
            calls::ACCEPT | calls::ACCEPT4 => self.on_accept(call),
            calls::GETPEERNAME => self.on_name_asked(call, |name| Some(name.client)),
            calls::GETSOCKNAME => self.on_name_asked(call, |name| name.destination),
            calls::LISTEN if marked::asks_to_wake(call.args[1]) => self.on_wake_asked(call),
            calls::LISTEN => self.on_listen(call),
            calls::IO_URING_SETUP => {
                self.journal.on_io_uring(call.thread);
                // Neither the library nor a filter sees an accept() through a ring.
                self.answer(&call, Answer::Fail(Errno::NOSYS));
            }
            _ => self.answer(&call, Answer::GoOn),
        }
        Ok(())
    }

    /// getpeername() or getsockname(): the kernel answers for connections without a stored name, and for
    /// closed ones.
    fn on_name_asked(
        &mut self,
        call: Notification,
        which: impl FnOnce(Name) -> Option<std::net::SocketAddr>,
    ) {
        let Some(socket) = self.descriptor(&call) else { return };
        let name = socket_cookie(&socket).ok().and_then(|cookie| self.names.find(cookie));
        let shown = name.filter(|_| getpeername(&socket).is_ok()).and_then(which);
        drop(socket);
        let answer = match shown
            .map(|shown| write_address(&self.notifier, &call, [call.args[1], call.args[2]], shown))
        {
            None => Answer::GoOn,
            Some(Ok(())) => Answer::Value(0),
            Some(Err(errno)) => Answer::Fail(errno),
        };
        self.answer(&call, answer);
    }

    /// The library of a process asks for help: a connection is ready, and nobody has accepted it. A process
    /// that may not be looked into is served by its library all the same.
    fn on_wake_asked(&mut self, call: Notification) {
        if let Ok(socket) = descriptor_of(call.thread, call.int(0))
            && self.notifier.is_waiting(call.id)
            && let Ok(listener) = SocketId::of(socket.as_fd())
        {
            self.ringer.wake_kin(listener);
        }
        self.answer(&call, Answer::Value(0));
    }

    fn on_listen(&mut self, call: Notification) {
        self.note_without_library(&call);
        let Some(socket) = self.descriptor(&call) else { return };
        if let Ok(cookie) = socket_cookie(&socket) {
            self.siblings.on_listen(cookie, call.int(0), Instant::now());
        }
        let answer = match self.listeners.listen(socket.as_fd(), call.int(1)) {
            None => Answer::GoOn,
            Some(Ok(())) => Answer::Value(0),
            Some(Err(errno)) => Answer::Fail(errno),
        };
        drop(socket);
        self.answer(&call, answer);
    }

    /// A call without the library's mark, from a family whose first program has the library.
    pub(super) fn note_without_library(&mut self, call: &Notification) {
        if self.relation.is_beside() {
            self.journal.on_without_library(call.thread);
        }
    }

    pub(super) fn descriptor(&mut self, call: &Notification) -> Option<OwnedFd> {
        descriptor_for(call, &self.notifier, &mut self.journal)
    }

    pub(super) fn answer(&mut self, call: &Notification, answer: Answer) {
        if let Err(error) = self.notifier.send(call.id, answer) {
            self.journal.on_trouble("can't answer a call", &error);
        }
    }

    /// The periodic work.
    fn look_after(&mut self, now: Instant) {
        if now.duration_since(self.looked_after) >= PARKED_PERIOD {
            self.looked_after = now;
            self.parked.look_after(&self.watch, &self.notifier, &self.siblings, now);
        }
        for decided in self.after_wait.turn() {
            let found = decided.place.and_then(|(thread, number)| descriptor_of(thread, number).ok());
            if let Some(refused) = decided.end(found.as_ref().map(AsFd::as_fd), &self.rules) {
                self.journal.on_refused(&refused);
            }
        }
        if now.duration_since(self.woken) >= READY_PERIOD {
            self.woken = now;
            for (listener, failure) in self.ringer.failures().collect::<Vec<_>>() {
                match failure {
                    NotWoken::Gone => self.journal.on_abandoned(self.ready.abandon(listener)),
                    NotWoken::Unreachable(errno, obstacle) if self.ready.has(listener) => {
                        self.journal.on_not_woken(listener.local, errno, obstacle)
                    }
                    NotWoken::Unreachable(..) => {}
                }
            }
            for listener in self.ready.addresses() {
                self.ringer.wake(listener, self.callers.at(listener), true);
            }
        }
    }

    /// Wakes the program for a connection that is ready.
    pub(super) fn wake(&self, listener: ListenerAddr) {
        self.ringer.wake(listener, self.callers.at(listener), false);
    }
}
