//! One session: its stages, and its end.
//!
//! ```text
//! AwaitHeader ──▶ Connecting ──▶ Relaying ──▶ closed
//!      └──────────────┴──────────────┴──────────▲
//! ```
//! Stages are consumed and replaced, except `Relaying`, which takes most of the time and works in place. A
//! session has no access to a clock or an event loop: events and `now` are parameters, and a [`Verdict`]
//! tells what it waits for.

mod adoption;
mod ending;
mod opening;

use std::time::{Duration, Instant};

use truepeer_policy::{ClientAddr, Policy, Route, SenderAddr};
use truepeer_session::budget::Permit;
use truepeer_session::clients::Counted;
use truepeer_session::deadlines::{Link, Linked};
use truepeer_session::registry::SessionStage;
use truepeer_session::{CloseReason, ListenerId, OpenSession, SessionFilter, SessionId, Tags};

use super::connecting::Connecting;
use super::context::Context;
use super::half::{End, PumpContext};
use super::header::FirstBytes;
use super::left::Left;
use super::relaying::{Progress, Relaying, Side};
use crate::io::{FlowOf, Io, Readiness};
use crate::offload::Offload as _;

/// What a session needs after its turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// An event or this deadline, whichever comes first.
    Wait(Deadline),
    /// Another turn, after the other sessions.
    Again,
    /// It must be closed.
    Close(CloseReason),
    /// The session goes on without this process.
    Offloaded,
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
    RouteRetry,
    ResetCheck,
    /// This [check](crate::leaving::check) of a session that leaves.
    Leaving(u8),
    /// The next look at a session that has left. `moves`: soon.
    Left {
        moves: bool,
    },
    Idle,
}

/// A session, at any stage.
pub(crate) struct Session<I: Io> {
    stage: Stage<I>,
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
    /// A header was optional, and nothing came in time: the first bytes may still be one.
    was_silent: bool,
    /// The permit for its descriptors. A session that has left user space has none.
    permit: Option<Permit>,
    /// Counts it for its client. Boxed: most listeners have no such limit.
    counted: Option<Box<Counted>>,
}

enum Stage<I: Io> {
    AwaitHeader {
        downstream: End<I::Socket>,
        first: FirstBytes,
    },
    Connecting(Connecting<I::Socket>),
    Relaying(Relaying<I>),
    /// Boxed: it is smaller than the others.
    Left(Box<Left<FlowOf<I>>>),
    Over,
}

impl<I: Io> Linked for Session<I> {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl<I: Io> Session<I> {
    /// A session that starts with an accepted connection.
    pub(crate) fn new(socket: I::Socket, sender: SenderAddr, now: Instant, permit: Permit) -> Self {
        let downstream = End { socket, ready: Readiness::FRESH };
        let stage = Stage::AwaitHeader { downstream, first: FirstBytes::default() };
        Self::at(stage, sender, now, Some(permit))
    }

    /// A session of which only the sender is known.
    fn at(stage: Stage<I>, sender: SenderAddr, began: Instant, permit: Option<Permit>) -> Self {
        let link = Link::default();
        let (turn_due, was_silent) = (false, false);
        let (route, tags, counted) = (None, None, None);
        Self { stage, sender, route, began, tags, link, turn_due, was_silent, permit, counted }
    }

    /// Whether it has left user space.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.stage, Stage::Left(_))
    }

    /// Its client, once known.
    pub(crate) fn client(&self) -> Option<ClientAddr> {
        self.route().map(|route| route.client)
    }

    /// Whether its client is banned now.
    pub(crate) fn is_banned(&self, policy: &Policy) -> bool {
        self.route().is_some_and(|route| policy.bans(self.sender, route.client, route.origin))
    }

    /// Its connection to the backend, while bytes pass through this process.
    pub(crate) fn upstream(&self) -> Option<&I::Socket> {
        match &self.stage {
            Stage::Relaying(relaying) if !relaying.is_cut() => Some(relaying.upstream()),
            _ => None,
        }
    }

    /// The flow that its backend has to be asked about, if it has left user space and has been silent for so
    /// long.
    pub(crate) fn silent_flow(&self, silence: Duration, now: Instant) -> Option<&FlowOf<I>> {
        match &self.stage {
            Stage::Left(left) if left.silence(now) >= silence => Some(left.flow()),
            _ => None,
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
            origin: route.map(|route| route.origin),
            source: route.and_then(|route| route.source),
            backend: route.map(|route| route.backend),
            bytes_up,
            bytes_down,
            age: now.saturating_duration_since(self.began),
            tags: self.tags.clone(),
        }
    }

    /// Whether the operator asks for this session.
    pub(crate) fn is_wanted(&self, filter: &SessionFilter) -> bool {
        filter.admits(self.sender, self.route())
    }

    /// The first turn: reads what has arrived with the connection.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict {
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

    /// A turn after an event of one of the two sockets.
    pub(crate) fn on_event(
        &mut self,
        cx: &mut Context<'_, I>,
        scratch: &mut [u8],
        side: Side,
        event: Readiness,
    ) -> Verdict {
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
    pub(crate) fn turn(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict {
        self.turn_due = false;
        self.work(cx, scratch)
    }

    /// Processes what is known to be ready.
    fn work(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict {
        match &mut self.stage {
            Stage::Relaying(relaying) => {
                if let Err(error) = relaying.judge_late_bytes(cx.io, cx.settings) {
                    return Verdict::Close(error.into());
                }
                let mut progress = counted(cx, scratch, relaying, Relaying::run);
                if progress == Ok(Progress::Waiting) {
                    let age = cx.now.saturating_duration_since(self.began);
                    let stayed = relaying.stays();
                    let leaving = relaying.leave(cx.io, cx.settings.splice_after, age, cx.now);
                    if let Some(reason) = relaying.stays().filter(|_| stayed.is_none()) {
                        cx.shard.stay(reason.label());
                    }
                    progress = leaving.map(|leaving| leaving.unwrap_or(Progress::Waiting));
                }
                if progress == Ok(Progress::Left) { self.release(cx) } else { self.verdict(progress) }
            }
            Stage::AwaitHeader { .. } => self.read_header(cx, scratch),
            Stage::Connecting(_) | Stage::Left(_) | Stage::Over => Verdict::Wait(Deadline::Unchanged),
        }
    }

    /// Handles a deadline that has passed.
    pub(crate) fn on_deadline(
        &mut self,
        cx: &mut Context<'_, I>,
        scratch: &mut [u8],
        deadline: Deadline,
    ) -> Verdict {
        if self.turn_due {
            // Not silent: its turn is due, but the worker is busy with other sessions.
            return Verdict::Wait(deadline);
        }
        match (std::mem::replace(&mut self.stage, Stage::Over), deadline) {
            (
                Stage::AwaitHeader { downstream, first },
                Deadline::Header | Deadline::HeaderWait | Deadline::HeaderRest,
            ) => self.on_header_timeout(cx, downstream, first),
            (Stage::Connecting(connecting), Deadline::ConflictRetry | Deadline::RouteRetry) => {
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
            (Stage::Relaying(relaying), Deadline::Leaving(_)) => {
                let silence = relaying.silence(cx.now);
                self.stage = Stage::Relaying(relaying);
                if cx.settings.idle_timeout.is_some_and(|most| silence >= most) {
                    return Verdict::Close(CloseReason::Idle);
                }
                self.work(cx, scratch)
            }
            (Stage::Left(mut left), _) => {
                let bytes = left.uncounted_bytes();
                cx.shard.add_bytes(bytes.0, bytes.1);
                let ended = left.look(cx.settings.idle_timeout, cx.now);
                let offload = cx.io.offload();
                let can_ask = offload.is_ok_and(|offload| offload.can_ask());
                let ended = ended.map_or_else(|| left.attend(can_ask, cx.now), Err);
                let verdict = match ended {
                    Ok(silent) => {
                        if let (Some(side), Ok(offload)) = (silent, offload) {
                            offload.ask(left.flow(), side, cx.settings.mark);
                        }
                        Verdict::Wait(Deadline::Left { moves: left.moves(bytes) })
                    }
                    Err(reason) => Verdict::Close(reason),
                };
                self.stage = Stage::Left(left);
                verdict
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
            Ok(Progress::Leaving(check)) => Verdict::Wait(Deadline::Leaving(check)),
            Ok(Progress::Left) => Verdict::Wait(Deadline::Left { moves: true }),
            Err(reason) => Verdict::Close(reason),
        }
    }
}

/// Lets bytes move, and counts them at once: a session may last for days.
fn counted<I: Io, T>(
    cx: &mut Context<'_, I>,
    scratch: &mut [u8],
    relaying: &mut Relaying<I>,
    turn: impl FnOnce(&mut Relaying<I>, &mut PumpContext<'_, I>) -> T,
) -> T {
    let (up, down) = relaying.delivered_bytes();
    let mut pump = PumpContext { io: cx.io, scratch, backlog_bytes: &cx.budgets.backlog_bytes };
    let result = turn(relaying, &mut pump);
    let (up_now, down_now) = relaying.delivered_bytes();
    cx.shard.add_bytes(up_now - up, down_now - down);
    result
}
