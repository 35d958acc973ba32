//! Sessions that leave user space: their packets are translated in the kernel between their two connections,
//! and both sockets are closed silently. docs/internals/splice.md tells how.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use truepeer_session::connect_as::{ConnectError, Upstream, connect_as};
use truepeer_splice::{
    Broken, Connections, Grace, Handover, Progress, Reason, Sockets, Splices, Stage, Streams, Sweeper, Turn,
    Watched, Ways, arm,
};
use truepeer_sys::{repair, socket};

use crate::kernel::KernelSocket;
use crate::offload::{Flow, Offload};
use crate::udp::FlowOffload;

/// How long a session waits for what a peer has to do before the cut: take what was written to it, or use up
/// an offer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The session has looked at the peers at least so often before its [`PATIENCE`] ends. Time alone does not
/// count: the machine may have kept the worker from running. A look comes each 4 to 8 ms
/// ([`CHECK_WHILE_PEERS_WAIT`]).
const LOOKS: u32 = 50;

/// After so many turns in which bytes moved the programs must have heard both peers, unless the session's
/// packets pass other devices.
const TURNS: u32 = 200;

/// How often the kernel may choose a port that a session in the tables uses.
const PORTS: usize = 16;

/// The waits between two looks at a session that leaves, if no event comes: 4 ms after something has moved,
/// doubled up to a second.
pub(crate) const CHECKS: u8 = 9;

/// The longest of them while the session keeps a peer waiting: no event tells that the other peer takes more.
const CHECK_WHILE_PEERS_WAIT: u8 = 1;

/// See [`CHECKS`].
pub(crate) fn check(number: u8) -> Duration {
    Duration::from_millis(4 << number)
}

/// The kernel's programs for sessions and for flows. Err: why none leaves.
#[derive(Debug, Clone)]
pub struct Offloads {
    /// For TCP sessions.
    pub sessions: Result<Splicing, Reason>,
    /// For UDP flows.
    pub flows: Result<FlowOffload, Reason>,
}

impl Default for Offloads {
    fn default() -> Self {
        Self { sessions: Err(Reason::NotLoaded), flows: Err(Reason::NotLoaded) }
    }
}

/// The kernel's programs, for all workers.
#[derive(Clone)]
pub struct Splicing {
    splices: Arc<Splices>,
    grace: Grace,
    ways: Arc<Ways>,
    /// Why sessions stay while another process has the tables.
    while_guest: Reason,
    /// Set when the relay starts.
    sweeper: Arc<OnceLock<Sweeper>>,
}

impl std::fmt::Debug for Splicing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Splicing")
    }
}

impl Splicing {
    /// With a thread that waits for grace periods. `while_guest`: why sessions stay while another process has
    /// the tables.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(splices: Arc<Splices>, ways: Arc<Ways>, while_guest: Reason) -> std::io::Result<Self> {
        Ok(Self { splices, ways, while_guest, grace: Grace::start()?, sweeper: Arc::default() })
    }

    /// Starts the thread that cleans up after flows. It passes flows of another process to `hand_out`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn sweep(&self, hand_out: impl Fn(Vec<Watched>) + Send + 'static) -> std::io::Result<()> {
        let sweeper = Sweeper::start(Arc::clone(&self.splices), Arc::clone(&self.ways), hand_out)?;
        // Err: a sweeper runs already; this one ends.
        let _ = self.sweeper.set(sweeper);
        Ok(())
    }

    /// Lets another process have the tables.
    pub(crate) fn release(&self) {
        self.splices.release();
    }

    /// Like [`connect_as`], but avoids the tuples of sessions that have left user space, which the kernel
    /// doesn't know.
    ///
    /// # Errors
    /// Those of [`connect_as`].
    pub(crate) fn connect(&self, upstream: &Upstream) -> Result<OwnedFd, ConnectError> {
        let is_in_use = |own| self.splices.are_in_use(upstream.backend, own);
        if let Some(source) = upstream.source.filter(|source| source.port() != 0) {
            return if is_in_use(source) { Err(ConnectError::TupleInUse) } else { connect_as(upstream) };
        }
        // Keep these open, or the kernel would choose the same ports again.
        let mut unusable = Vec::new();
        for _ in 0..PORTS {
            let socket = connect_as(upstream)?;
            match socket::local_address(socket.as_fd()) {
                Ok(own) if is_in_use(own) => unusable.push(socket),
                _ => return Ok(socket),
            }
        }
        Err(ConnectError::TupleInUse)
    }
}

impl Offload for Splicing {
    type Socket = KernelSocket;
    type Armed = Sockets;
    type Flow = Watched;

    fn arm(&self, sockets: [&KernelSocket; 2], age: Duration) -> Result<Sockets, Reason> {
        if self.splices.is_guest() {
            return Err(self.while_guest);
        }
        if !repair::is_possible() {
            return Err(Reason::KeeperGone);
        }
        let sockets = sockets.map(AsFd::as_fd);
        let armed = arm(&self.splices, &self.grace, &self.ways, sockets).map_err(|stays| stays.reason())?;
        armed.set_age(age);
        for socket in sockets {
            // Before Linux 5.14: the window may widen, and the cut waits longer.
            let _ = repair::set_receive_buffer_fixed(socket, true);
        }
        Ok(armed)
    }

    fn connections<'a>(armed: &'a mut Sockets, sockets: [&'a KernelSocket; 2]) -> impl Connections + 'a {
        armed.with(sockets.map(AsFd::as_fd))
    }

    fn stream_bytes(armed: &Sockets) -> u64 {
        armed.stream_bytes()
    }

    /// While offers were held, a peer may have been told of a narrower window than its socket remembers, so
    /// the socket would not tell it of the wider one.
    fn give_up(armed: Sockets, sockets: [&KernelSocket; 2], was_held: bool) {
        let sockets = sockets.map(AsFd::as_fd);
        for socket in sockets {
            // As before.
            let _ = repair::set_receive_buffer_fixed(socket, false);
        }
        drop(armed);
        if was_held {
            // If it fails, the peers ask by themselves, only later.
            let _ = repair::ask_peers(sockets);
        }
    }

    fn release(armed: Sockets, sockets: [KernelSocket; 2]) -> Watched {
        armed.offload(sockets.each_ref().map(AsFd::as_fd))
    }

    fn can_ask(&self) -> bool {
        repair::is_possible()
    }

    fn ask(&self, flow: &Watched, side: usize, mark: u32) {
        if let Some(sweeper) = self.sweeper.get() {
            sweeper.ask(flow.question(side), if side == 1 { mark } else { 0 });
        }
    }

    fn reset(&self, flow: Watched) {
        let removed = flow.remove();
        if let Some(sweeper) = self.sweeper.get() {
            sweeper.reset(removed);
        }
    }
}

impl Flow for Watched {
    fn stage(&self) -> Stage {
        self.stage()
    }

    fn bytes(&self) -> [u64; 2] {
        self.bytes()
    }

    fn segments(&self) -> [u64; 2] {
        self.segments()
    }

    fn reset_by(&self) -> Option<usize> {
        self.reset_by()
    }

    fn has_lost_its_way(&self) -> bool {
        self.has_lost_its_way()
    }
}

/// A session on its way.
#[derive(Debug)]
pub(crate) struct Leaving<O: Offload> {
    steps: Handover,
    armed: O::Armed,
    /// When the session began to wait for a peer ([`PATIENCE`]), and how often it has looked since.
    waits_since: Option<(Instant, u32)>,
    began: Instant,
    turns: u32,
    state: State,
    /// When `state` last changed.
    moved_at: Instant,
    /// Turns since then.
    quiet_turns: u32,
}

/// What a turn has found: if two turns find the same, nothing has moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    progress: Option<Progress>,
    written: [u64; 2],
    held: [u64; 2],
    pending: u64,
    carried: u64,
}

impl<O: Offload> Leaving<O> {
    /// Begins.
    ///
    /// # Errors
    /// Why the session stays in user space.
    pub(crate) fn begin(
        offload: &O,
        sockets: [&O::Socket; 2],
        age: Duration,
        now: Instant,
    ) -> Result<Self, Reason> {
        Ok(Self {
            steps: Handover::default(),
            armed: offload.arm(sockets, age)?,
            waits_since: None,
            began: now,
            turns: 0,
            state: State::default(),
            moved_at: now,
            quiet_turns: 0,
        })
    }

    /// Whether the peers have to be heard first: nothing is to be done until one of them speaks.
    pub(crate) fn is_listening(&self) -> bool {
        self.steps.progress() == Progress::Armed
    }

    /// Whether the cut was made: the session can't stay.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self.steps.progress(), Progress::Tail | Progress::Settling)
    }

    /// The number of the next [check](CHECKS), which comes ever later while nothing moves.
    pub(crate) fn next_check(&self) -> u8 {
        check_after(self.quiet_turns, self.waits_since.is_some() && !self.is_cut())
    }

    /// How long nothing has moved.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved_at)
    }

    pub(crate) fn turn(
        &mut self,
        sockets: [&O::Socket; 2],
        streams: &Streams,
        now: Instant,
    ) -> Result<Turn, Broken> {
        if self.is_impatient(now) {
            let is_held = self.steps.progress() == Progress::Held;
            return Ok(Turn::StayHere(if is_held { Reason::Offers } else { Reason::Unsent }));
        }
        self.turns += 1;
        let waited = now.saturating_duration_since(self.began);
        if self.is_listening() && self.turns > TURNS && waited > PATIENCE {
            let reason =
                if self.steps.waits_for_windows() { Reason::WindowScale } else { Reason::PacketsNotSeen };
            return Ok(Turn::StayHere(reason));
        }
        let turn = self.steps.turn(&mut O::connections(&mut self.armed, sockets), streams)?;
        if matches!(turn, Turn::Hold(_)) || self.steps.progress() == Progress::Held {
            self.waits_since.get_or_insert((now, 0)).1 += 1;
        }
        self.note(streams, now);
        Ok(turn)
    }

    /// A peer that takes nothing leaves bytes unsent in its socket, or an offer unused: the session doesn't
    /// wait longer for it.
    fn is_impatient(&self, now: Instant) -> bool {
        !self.is_cut()
            && self.waits_since.is_some_and(|(since, looks)| {
                looks > LOOKS && now.saturating_duration_since(since) > PATIENCE
            })
    }

    fn note(&mut self, streams: &Streams, now: Instant) {
        let state = State {
            progress: Some(self.steps.progress()),
            written: streams.written,
            held: streams.held,
            pending: self.steps.pending_bytes(),
            carried: O::stream_bytes(&self.armed),
        };
        if state == self.state {
            self.quiet_turns = self.quiet_turns.saturating_add(1);
        } else {
            (self.state, self.moved_at, self.quiet_turns) = (state, now, 0);
        }
    }

    /// The session stays: its sockets are as they were.
    pub(crate) fn give_up(self, sockets: [&O::Socket; 2]) {
        O::give_up(self.armed, sockets, self.steps.progress() == Progress::Held);
    }

    /// Closes the sockets silently.
    pub(crate) fn release(self, sockets: [O::Socket; 2]) -> O::Flow {
        O::release(self.armed, sockets)
    }
}

/// The number of the check after `quiet_turns` turns in which nothing moved.
fn check_after(quiet_turns: u32, peers_wait: bool) -> u8 {
    let longest = if peers_wait { CHECK_WHILE_PEERS_WAIT } else { CHECKS - 1 };
    u8::try_from(quiet_turns / 3).unwrap_or(u8::MAX).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_ever_later_but_not_while_a_peer_waits() {
        assert_eq!([0, 3, 6, 1000].map(|turns| check_after(turns, false)), [0, 1, 2, CHECKS - 1]);
        assert_eq!(
            [0, 3, 6, 1000].map(|turns| check(check_after(turns, true))),
            [4, 8, 8, 8].map(Duration::from_millis)
        );
    }
}
