//! One session: its stages, and its end.
//!
//! ```text
//! AwaitHeader ──▶ Connecting ──▶ Relaying ──▶ closed
//!      └──────────────┴──────────────┴──────────▲
//! ```
//! Stages are consumed and replaced, except `Relaying`, which takes most of the time and works in place. A
//! session has no access to a clock or an event loop: events and `now` are parameters, and a [`Verdict`] tells
//! what it waits for.

use std::time::Instant;

use truepeer_policy::{HeaderRule, Opening, Route, SenderAddr};
use truepeer_proto::Header;
use truepeer_session::budget::Permit;
use truepeer_session::counters::Counter;
use truepeer_session::deadlines::{Link, Linked};
use truepeer_session::registry::SessionStage;
use truepeer_session::{CloseReason, Ended, ListenerId, OpenSession, SessionFilter, SessionId, Tags};

use super::connecting::{Connecting, Dialling};
use super::context::Context;
use super::half::{End, PumpContext};
use super::header::{FirstBytes, HeaderRules, Read};
use super::left::Left;
use super::relaying::{Progress, Relaying, Side};
use crate::io::{Io, Readiness};

/// What a session needs after its turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// An event or this deadline, whichever comes first.
    Wait(Deadline),
    /// Another turn, after the other sessions.
    Again,
    /// It must be closed.
    Close(CloseReason),
}

/// The purpose of a session's one deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The deadline that is already running.
    Unchanged,
    /// A whole header.
    Header,
    /// A first byte, if a header is optional.
    HeaderWait,
    /// The rest of a header that had started by then.
    HeaderRest,
    Connect,
    ConflictRetry,
    ResetCheck,
    Leaving,
    Left,
    Idle,
}

/// A session, at any stage.
#[derive(Debug)]
pub(crate) struct Session<S, P> {
    stage: Stage<S, P>,
    sender: SenderAddr,
    /// Boxed because it is used only twice in a session's life.
    route: Option<Box<Route>>,
    began: Instant,
    /// What the header said besides addresses: nothing, in most.
    tags: Option<Box<Tags>>,
    link: Link,
    /// The session has asked for another turn. Until then events are only noted: a session has one turn per
    /// round, however many events its sockets have.
    turn_due: bool,
    _permit: Permit,
}

#[derive(Debug)]
enum Stage<S, P> {
    AwaitHeader {
        downstream: End<S>,
        first: FirstBytes,
    },
    Connecting(Connecting<S>),
    Relaying(Relaying<S, P>),
    /// Boxed: it is smaller than the others.
    Left(Box<Left>),
    Over,
}

impl<S, P> Linked for Session<S, P> {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl<S, P> Session<S, P> {
    /// A session that starts with an accepted connection.
    pub(crate) fn new(socket: S, sender: SenderAddr, now: Instant, permit: Permit) -> Self {
        let downstream = End { socket, ready: Readiness::FRESH };
        Self {
            stage: Stage::AwaitHeader { downstream, first: FirstBytes::default() },
            sender,
            route: None,
            began: now,
            tags: None,
            link: Link::default(),
            turn_due: false,
            _permit: permit,
        }
    }

    fn route(&self) -> Option<&Route> {
        match &self.stage {
            Stage::Connecting(connecting) => Some(connecting.route()),
            _ => self.route.as_deref(),
        }
    }

    /// The session at `now`, for the operator.
    pub(crate) fn describe(&self, id: SessionId, listener: ListenerId, now: Instant) -> OpenSession {
        let (stage, (bytes_up, bytes_down)) = match &self.stage {
            Stage::AwaitHeader { .. } => (SessionStage::Header, (0, 0)),
            Stage::Connecting(_) => (SessionStage::Connecting, (0, 0)),
            Stage::Relaying(relaying) => (SessionStage::Relaying, relaying.delivered_bytes()),
            Stage::Left(left) => (SessionStage::Spliced, left.delivered_bytes()),
            Stage::Over => (SessionStage::Relaying, (0, 0)),
        };
        let route = self.route();
        OpenSession {
            id,
            listener,
            stage,
            sender: self.sender,
            client: route.map(|route| route.client),
            backend: route.map(|route| route.backend),
            bytes_up,
            bytes_down,
            age: now.saturating_duration_since(self.began),
            tags: self.tags.clone(),
        }
    }

    /// Whether the operator asks for this session.
    pub(crate) fn is_wanted(&self, filter: &SessionFilter) -> bool {
        filter.admits(self.route().map(|route| route.client), self.sender)
    }

    /// The first turn: reads what has arrived with the connection.
    pub(crate) fn begin<I>(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        let Stage::AwaitHeader { downstream, .. } = &self.stage else {
            return Verdict::Wait(Deadline::Unchanged);
        };
        if let Err(errno) = cx.io.watch(&downstream.socket, cx.tokens.downstream) {
            return Verdict::Close(CloseReason::Unwatchable(errno));
        }
        match self.work(cx, scratch) {
            Verdict::Wait(Deadline::Unchanged) => Verdict::Wait(self.header_deadline(cx)),
            verdict => verdict,
        }
    }

    /// The first deadline: for silence, or for the header.
    fn header_deadline<I>(&self, cx: &Context<'_, I>) -> Deadline {
        let times = cx.settings.header_times;
        let may_be_silent = cx.policy.admit(self.sender) == Ok(HeaderRule::Optional);
        if may_be_silent && times.wait < times.timeout { Deadline::HeaderWait } else { Deadline::Header }
    }

    /// A turn after an event of one of the two sockets.
    pub(crate) fn on_event<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        scratch: &mut [u8],
        side: Side,
        event: Readiness,
    ) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        match &mut self.stage {
            Stage::Relaying(relaying) => relaying.note(side, event),
            Stage::AwaitHeader { downstream, .. } => downstream.ready.merge(event),
            Stage::Connecting(connecting) if side == Side::Downstream => {
                connecting.note_downstream(event);
                return Verdict::Wait(Deadline::Unchanged);
            }
            Stage::Connecting(_) => return self.on_backend_event(cx, scratch, event),
            Stage::Left(_) | Stage::Over => {}
        }
        if self.turn_due {
            return Verdict::Wait(Deadline::Unchanged);
        }
        self.work(cx, scratch)
    }

    /// The further turn that [`Verdict::Again`] asked for.
    pub(crate) fn turn<I>(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        self.turn_due = false;
        self.work(cx, scratch)
    }

    /// Processes what is known to be ready.
    fn work<I>(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        match &mut self.stage {
            Stage::Relaying(relaying) => {
                let mut progress = counted(cx, scratch, relaying, Relaying::run);
                if progress == Ok(Progress::Waiting) {
                    let age = cx.now.saturating_duration_since(self.began);
                    let stayed = relaying.stays();
                    let leaving = relaying.leave(cx.io, cx.settings.splice_after, age, cx.now);
                    if relaying.stays() && !stayed {
                        cx.shard.count(Counter::NotSpliced);
                    }
                    progress = leaving.map(|leaving| leaving.unwrap_or(Progress::Waiting));
                }
                if progress == Ok(Progress::Left) { self.let_go(cx) } else { self.verdict(progress) }
            }
            Stage::AwaitHeader { .. } => self.read_header(cx, scratch),
            Stage::Connecting(_) | Stage::Left(_) | Stage::Over => Verdict::Wait(Deadline::Unchanged),
        }
    }

    /// Handles a deadline that has passed.
    pub(crate) fn on_deadline<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        scratch: &mut [u8],
        deadline: Deadline,
    ) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        if self.turn_due {
            // Not silent: its turn is due, but the worker is busy with other sessions.
            return Verdict::Wait(deadline);
        }
        match (std::mem::replace(&mut self.stage, Stage::Over), deadline) {
            (
                Stage::AwaitHeader { downstream, first },
                Deadline::Header | Deadline::HeaderWait | Deadline::HeaderRest,
            ) => self.on_header_timeout(cx, downstream, first),
            (Stage::Connecting(connecting), Deadline::ConflictRetry) => {
                let dialling = connecting.attempt(cx);
                self.adopt(cx, dialling)
            }
            (Stage::Connecting(connecting), Deadline::Connect) => {
                let dialling = connecting.time_out(cx.settings.connect_timeout);
                self.adopt(cx, dialling)
            }
            (Stage::Relaying(mut relaying), Deadline::ResetCheck) => {
                let progress = counted(cx, scratch, &mut relaying, Relaying::check_reset);
                self.stage = Stage::Relaying(relaying);
                self.verdict(progress)
            }
            (stage @ Stage::Relaying(_), Deadline::Leaving) => {
                self.stage = stage;
                self.work(cx, scratch)
            }
            (Stage::Left(mut left), _) => {
                let (up, down) = left.delivered_bytes();
                cx.shard.add_bytes(up - left.counted.0, down - left.counted.1);
                left.counted = (up, down);
                let ended = left.look(cx.settings.idle_timeout, cx.now);
                self.stage = Stage::Left(left);
                ended.map_or(Verdict::Wait(Deadline::Left), Verdict::Close)
            }
            (stage @ Stage::Relaying(_), Deadline::Idle) => {
                self.stage = stage;
                Verdict::Close(CloseReason::Idle)
            }
            (stage, _) => {
                self.stage = stage;
                Verdict::Wait(Deadline::Unchanged)
            }
        }
    }

    fn on_header_timeout<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        downstream: End<S>,
        first: FirstBytes,
    ) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        let reader = match cx.policy.admit(self.sender) {
            Ok(rule) => cx.settings.header_reader(rule),
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        match reader.on_timeout(first.seen(), cx.now.saturating_duration_since(self.began)) {
            Opening::NoHeader => self.open(cx, downstream, None, &[]),
            Opening::Refused(error) => Verdict::Close(error.into()),
            // The header started within the time for silence, and gets the rest of the header's time.
            Opening::NeedMore | Opening::Header { .. } => {
                self.stage = Stage::AwaitHeader { downstream, first };
                Verdict::Wait(Deadline::HeaderRest)
            }
        }
    }

    fn read_header<I>(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        let Stage::AwaitHeader { mut downstream, mut first } =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Verdict::Wait(Deadline::Unchanged);
        };
        let rule = match cx.policy.admit(self.sender) {
            Ok(HeaderRule::Forbid) => return self.open(cx, downstream, None, &[]),
            Ok(rule) => rule,
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        let rules = HeaderRules {
            reader: cx.settings.header_reader(rule),
            header_bytes: &cx.budgets.header_bytes,
            backlog_bytes: &cx.budgets.backlog_bytes,
        };
        while downstream.ready.readable {
            match first.read(cx.io, &mut downstream, scratch, rules) {
                Read::Opening(Opening::NeedMore, _) => {}
                Read::Opening(Opening::Header { header, consumed }, bytes) => {
                    return self.open(cx, downstream, Some(&header), &bytes[consumed..]);
                }
                Read::Opening(Opening::NoHeader, bytes) => return self.open(cx, downstream, None, bytes),
                Read::Opening(Opening::Refused(error), _) => return Verdict::Close(error.into()),
                Read::OverBudget => return Verdict::Close(CloseReason::OverHeaderBudget),
            }
        }
        self.stage = Stage::AwaitHeader { downstream, first };
        Verdict::Wait(Deadline::Unchanged)
    }

    /// Asks the policy for the destination, and connects.
    fn open<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        downstream: End<S>,
        header: Option<&Header<'_>>,
        rest: &[u8],
    ) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        let route = match cx.policy.route(self.sender, header) {
            Ok(route) => route,
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        let version = header.map(|header| header.version);
        self.tags = header.and_then(|header| Tags::of(header.tlvs));
        let waited = cx.now.saturating_duration_since(self.began);
        cx.journal.on_route(cx.shard, &route, version, waited);
        if let Some(range) = route.special {
            cx.journal.on_special_claim(&route, self.sender, range, cx.now);
        }
        let dialling = Connecting::dial(cx, downstream, route, header, rest);
        self.adopt(cx, dialling)
    }

    fn on_backend_event<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        scratch: &mut [u8],
        event: Readiness,
    ) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        let Stage::Connecting(connecting) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Verdict::Wait(Deadline::Unchanged);
        };
        let dialling = connecting.on_upstream(cx, event);
        match self.adopt(cx, dialling) {
            Verdict::Wait(Deadline::Idle) => self.work(cx, scratch),
            verdict => verdict,
        }
    }

    /// Enters the stage that connecting led to.
    fn adopt<I: Io<Socket = S, Pipe = P>>(
        &mut self,
        cx: &mut Context<'_, I>,
        dialling: Dialling<S, P>,
    ) -> Verdict {
        match dialling {
            Dialling::Connected(relaying, route, took) => {
                cx.journal.on_connected(cx.shard, took);
                let (up, down) = relaying.delivered_bytes();
                cx.shard.add_bytes(up, down);
                self.route = Some(route);
                self.stage = Stage::Relaying(relaying);
                Verdict::Wait(Deadline::Idle)
            }
            Dialling::Waiting(connecting) => {
                self.stage = Stage::Connecting(connecting);
                Verdict::Wait(Deadline::Connect)
            }
            Dialling::InConflict(connecting) => {
                self.stage = Stage::Connecting(connecting);
                Verdict::Wait(Deadline::ConflictRetry)
            }
            Dialling::Failed(downstream, reason) => {
                if reason.resets_downstream() {
                    cx.io.reset_when_closed(&downstream.socket);
                }
                Verdict::Close(reason)
            }
        }
    }

    /// Converts the outcome of relaying to a verdict. Any progress restarts the idle time-out.
    fn verdict(&mut self, progress: Result<Progress, CloseReason>) -> Verdict {
        match progress {
            Ok(Progress::Waiting) => Verdict::Wait(Deadline::Idle),
            Ok(Progress::TurnOver) => {
                self.turn_due = true;
                Verdict::Again
            }
            Ok(Progress::Resetting) => Verdict::Wait(Deadline::ResetCheck),
            Ok(Progress::StillResetting) => Verdict::Wait(Deadline::Unchanged),
            Ok(Progress::Leaving | Progress::Left) => Verdict::Wait(Deadline::Leaving),
            Err(reason) => Verdict::Close(reason),
        }
    }

    /// Makes the close of all connections before relaying a reset.
    fn reset_early<I: Io<Socket = S>>(&self, io: &mut I) {
        match &self.stage {
            Stage::AwaitHeader { downstream, .. } => io.reset_when_closed(&downstream.socket),
            Stage::Connecting(connecting) => connecting.reset(io),
            Stage::Relaying(_) | Stage::Left(_) | Stage::Over => {}
        }
    }

    /// The session's sockets close silently; the kernel translates its packets.
    fn let_go<I>(&mut self, cx: &mut Context<'_, I>) -> Verdict
    where
        I: Io<Socket = S, Pipe = P>,
    {
        if let Stage::Relaying(relaying) = std::mem::replace(&mut self.stage, Stage::Over) {
            let before = relaying.delivered_bytes();
            if let Some(watched) = relaying.let_go(cx.io) {
                cx.shard.count(Counter::Spliced);
                self.stage = Stage::Left(Box::new(Left::new(watched, before, cx.now)));
            }
        }
        Verdict::Wait(Deadline::Left)
    }

    /// The flow of a session that has left goes with it, unless it has ended by itself. Returns its bytes.
    fn end_left<I: Io<Socket = S>>(&mut self, io: &mut I, reason: &CloseReason) -> (u64, u64) {
        let Stage::Left(left) = std::mem::replace(&mut self.stage, Stage::Over) else { return (0, 0) };
        let bytes = left.delivered_bytes();
        if !matches!(reason, CloseReason::Finished | CloseReason::ResetByClient | CloseReason::ResetByBackend)
        {
            io.reset_unattended(left.into_watched());
        }
        bytes
    }

    /// The last turn: resets or cuts the connections, counts and logs. The sockets close when the session is
    /// dropped.
    pub(crate) fn close<I: Io<Socket = S>>(&mut self, cx: &mut Context<'_, I>, reason: &CloseReason) {
        let (mut bytes_up, mut bytes_down) = (0, 0);
        if matches!(self.stage, Stage::Left(_)) {
            (bytes_up, bytes_down) = self.end_left(cx.io, reason);
        }
        if let Stage::Relaying(relaying) = &self.stage {
            (bytes_up, bytes_down) = relaying.delivered_bytes();
            match reason {
                // When truepeer ends a stream, that must not look like the sender's own end.
                CloseReason::ResetByClient
                | CloseReason::ResetByBackend
                | CloseReason::Stopping
                | CloseReason::EndedByOperator
                | CloseReason::Panicked => {
                    relaying.reset(cx.io);
                }
                _ => relaying.cut(cx.io),
            }
        } else if matches!(reason, CloseReason::Panicked | CloseReason::EndedByOperator) {
            self.reset_early(cx.io);
        }
        let ended = Ended {
            sender: self.sender,
            route: self.route(),
            listener: cx.settings.address,
            bytes_up,
            bytes_down,
            began: self.began,
            tls: None,
            tags: self.tags.as_deref(),
        };
        cx.journal.on_close(cx.shard, &ended, reason, cx.now);
    }
}

/// Lets bytes move, and counts them at once: a session may last for days.
fn counted<I, S, P, T>(
    cx: &mut Context<'_, I>,
    scratch: &mut [u8],
    relaying: &mut Relaying<S, P>,
    turn: impl FnOnce(&mut Relaying<S, P>, &mut PumpContext<'_, I>) -> T,
) -> T {
    let (up, down) = relaying.delivered_bytes();
    let mut pump = PumpContext { io: cx.io, scratch, backlog_bytes: &cx.budgets.backlog_bytes };
    let result = turn(relaying, &mut pump);
    let (up_now, down_now) = relaying.delivered_bytes();
    cx.shard.add_bytes(up_now - up, down_now - down);
    result
}
