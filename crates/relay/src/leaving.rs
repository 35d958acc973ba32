//! Sessions that leave user space: their packets are translated in the kernel between their two connections,
//! and both sockets are closed silently. docs/internals/splice.md tells how.

use std::time::{Duration, Instant};

use truepeer_splice::{Broken, Handover, Progress, Reason, Streams, Turn};

use crate::offload::Offload;

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

/// The waits between two looks at a session that leaves, if no event comes: 4 ms after something has moved,
/// doubled up to a second.
pub(crate) const CHECKS: u8 = 9;

/// The longest of them while the session keeps a peer waiting: no event tells that the other peer takes more.
const CHECK_WHILE_PEERS_WAIT: u8 = 1;

/// See [`CHECKS`].
pub(crate) fn check(number: u8) -> Duration {
    Duration::from_millis(4 << number)
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
