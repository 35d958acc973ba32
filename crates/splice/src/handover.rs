//! The hand-over's stages.

use truepeer_bpf::Ended;
use truepeer_sys::CallError;
use truepeer_sys::repair::Received;

use crate::Reason;
use crate::mapping::{Mapping, Position};

/// What a hand-over asks of the session's two connections and its flow. Side 0 is downstream.
pub trait Connections {
    /// Whether sockets can be put under repair: false once the keeper has gone.
    fn can_repair(&self) -> bool;
    /// Whether the programs have heard socket and peer of this side.
    fn is_heard(&self, side: usize) -> bool;
    /// Whether each peer's windows survive the rounding to the scale that the other peer was told.
    fn scales_fit(&self) -> bool;
    /// The number of the byte that would be written next; `None` while bytes wait to be sent.
    ///
    /// # Errors
    /// If a system call fails.
    fn next_to_write(&mut self, side: usize) -> Result<Option<u32>, CallError>;
    /// How much the socket has received.
    ///
    /// # Errors
    /// If a system call fails.
    fn received(&mut self, side: usize) -> Result<Received, CallError>;
    /// Neither end of the connection has come, even if it lies unread.
    ///
    /// # Errors
    /// If a system call fails.
    fn is_established(&mut self, side: usize) -> Result<bool, CallError>;
    /// The bytes that the socket still has to deliver.
    ///
    /// # Errors
    /// If a system call fails.
    fn pending_bytes(&mut self, side: usize) -> Result<Pending, CallError>;
    /// Whether the programs have seen the peer acknowledge everything up to this number.
    fn has_acknowledged(&self, side: usize, number: u32) -> bool;
    /// From now on no peer is offered more than the other one takes. Can't be undone while the flow lives.
    fn hold(&mut self, mapping: &Mapping);
    /// Whether neither peer has been offered more than that.
    fn offers_fit(&self) -> bool;
    /// Asked immediately before the cut: whether translated packets go the way that the sockets' do.
    ///
    /// # Errors
    /// Why the session stays.
    fn may_be_cut(&self) -> Result<(), Reason> {
        Ok(())
    }
    /// From here on a process that dies resets both connections.
    fn reset_when_closed(&mut self);
    /// Begins to translate. `bytes`: the length of each side's stream before that.
    fn cut(&mut self, mapping: &Mapping, bytes: [u64; 2]);
    /// Has the peers say what they have and take: one may wait for the other's window, which has widened
    /// before the cut.
    fn ask_peers(&mut self);
    /// The socket has its peer's bytes up to this number.
    fn keep(&mut self, side: usize, next: u32);
    /// Everything is translated from now on. False: the flow has ended by itself.
    fn all_is_delivered(&mut self, ended: Ended) -> bool;
    /// The reverse, unless the flow has ended by itself.
    fn back_to_tail(&mut self) -> bool;
    /// From now on closing the sockets says nothing to the peers. False: that can't be done now.
    fn fall_silent(&mut self) -> bool;
    /// Whether both peers' streams have ended, or a reset has ended them.
    fn has_ended(&mut self) -> bool;
    /// Asks for a grace period: no program that saw an older stage runs after it.
    fn ask_for_grace(&mut self);
    /// Whether it is over.
    fn is_grace_over(&self) -> bool;
}

/// Bytes in a socket.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pending {
    /// Received, and not read.
    pub unread: u64,
    /// Written, and not acknowledged, as far as the socket knows.
    pub unacknowledged: u64,
}

/// The session's streams, as the relay counts them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streams {
    /// Bytes that the socket of this side has taken.
    pub written: [u64; 2],
    /// Bytes that were read from the other side and wait to be written to this one.
    pub held: [u64; 2],
    /// The stream from this side has been read to its end.
    pub ended: [bool; 2],
    /// The end of the stream from this side was written to the other one.
    pub end_written: [bool; 2],
}

/// What the relay has to do until it gives the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing but its usual work. Next turn: when something has moved, or after some milliseconds.
    Wait,
    /// Write nothing to this side meanwhile: what it has must be sent first.
    Hold(usize),
    /// The session ends as any does: it is not worth it, or can't be done.
    StayHere(Reason),
    /// Close both sockets silently, and forget the session.
    Offload,
}

/// A hand-over that can't go back: both connections have to be reset.
#[derive(Debug, thiserror::Error)]
#[error("a connection broke while it was handed over: {0}")]
pub struct Broken(#[from] pub CallError);

/// How far a hand-over is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The programs learn what both peers have said. Until the cut the session can stay in user space.
    Armed,
    /// No peer is offered more than the other one takes; what was offered before is used up.
    Held,
    /// Translated, while the sockets deliver what they have.
    Tail,
    /// Waits for a grace period.
    Settling,
}

/// A session's hand-over.
#[derive(Debug)]
pub struct Handover {
    positions: [Option<Position>; 2],
    held: Option<Mapping>,
    /// Where each side's received stream stood at the cut.
    heard: [Option<Position>; 2],
    progress: Progress,
    pending_bytes: u64,
    waits_for_windows: bool,
    /// The ends that the flow was told of when all was delivered.
    told: Ended,
}

impl Default for Handover {
    fn default() -> Self {
        Self::knowing([None; 2])
    }
}

impl Handover {
    /// Of sockets whose positions are known already: best asked when nothing was written yet, because later
    /// the relay may have to hold its bytes back until all that it wrote was sent.
    #[must_use]
    pub fn knowing(positions: [Option<Position>; 2]) -> Self {
        Self {
            positions,
            held: None,
            heard: [None; 2],
            progress: Progress::Armed,
            pending_bytes: 0,
            waits_for_windows: false,
            told: [false; 2],
        }
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether the hand-over waits because a peer has offered only windows that are too narrow for the other
    /// one's scale.
    #[must_use]
    pub fn waits_for_windows(&self) -> bool {
        self.waits_for_windows
    }

    /// Bytes that the sockets still had to deliver at the last turn after the cut.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    /// [`Broken`], after the cut only: before it, a failure is a [`Turn::StayHere`].
    pub fn turn(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, Broken> {
        match self.progress {
            Progress::Armed | Progress::Held => Ok(match self.before_the_cut(connections, streams) {
                Ok(turn) => turn,
                Err(_) if !connections.can_repair() => Turn::StayHere(Reason::KeeperGone),
                Err(_) => Turn::StayHere(Reason::Failed),
            }),
            Progress::Tail => self.tail(connections, streams),
            Progress::Settling => self.settle(connections, streams),
        }
    }

    fn before_the_cut(
        &mut self,
        connections: &mut impl Connections,
        streams: &Streams,
    ) -> Result<Turn, CallError> {
        if streams.ended != [false; 2] {
            return Ok(Turn::StayHere(Reason::Ended));
        }
        if self.progress == Progress::Armed {
            self.hold(connections, streams)
        } else if connections.is_grace_over() && connections.offers_fit() {
            if let Err(reason) = connections.may_be_cut() {
                return Ok(Turn::StayHere(reason));
            }
            // Rounding may have widened an offer meanwhile.
            if connections.offers_fit() { self.cut(connections, streams) } else { Ok(Turn::Wait) }
        } else {
            Ok(Turn::Wait)
        }
    }

    /// Segments of our sockets that are under way have told the programs their window after a grace period.
    fn hold(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, CallError> {
        if !(connections.is_heard(0) && connections.is_heard(1)) {
            return Ok(Turn::Wait);
        }
        self.waits_for_windows = !connections.scales_fit();
        if self.waits_for_windows {
            return Ok(Turn::Wait);
        }
        // One after the other: held both at once, an echo would wait for ever.
        for side in [1, 0] {
            if self.positions[side].is_none() {
                let Some(next) = connections.next_to_write(side)? else { return Ok(Turn::Hold(side)) };
                self.positions[side] = Some(Position::new(next, streams.written[side]));
            }
        }
        let Some(mapping) = self.mapping(connections, streams)? else {
            return Ok(Turn::StayHere(Reason::Ended));
        };
        connections.hold(&mapping);
        connections.ask_for_grace();
        (self.held, self.progress) = (Some(mapping), Progress::Held);
        Ok(Turn::Wait)
    }

    fn cut(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, CallError> {
        let Some(mapping) = self.mapping(connections, streams)? else {
            return Ok(Turn::StayHere(Reason::Ended));
        };
        if self.held.is_none_or(|held| held.shifts != mapping.shifts) {
            return Ok(Turn::StayHere(Reason::NumbersChanged));
        }
        let bytes = [0, 1].map(|side: usize| {
            streams.written[1 - side] + streams.held[1 - side] + u64::from(mapping.unread[side])
        });
        connections.reset_when_closed();
        connections.cut(&mapping, bytes);
        connections.ask_peers();
        self.heard = [0, 1].map(|side| Some(Position::new(mapping.cuts[side], bytes[side])));
        self.progress = Progress::Tail;
        Ok(Turn::Wait)
    }

    /// `None`: one side has ended.
    fn mapping(
        &self,
        connections: &mut impl Connections,
        streams: &Streams,
    ) -> Result<Option<Mapping>, CallError> {
        let [Some(down), Some(up)] = self.positions else { return Ok(None) };
        let next_out = [(down, 0), (up, 1)]
            .map(|(position, side)| position.after(streams.written[side] + streams.held[side]));
        let received = [connections.received(0)?, connections.received(1)?];
        // Asked after that: an end that lies unread is counted in `received.next`, not in `received.unread`.
        let is_open = connections.is_established(0)? && connections.is_established(1)?;
        Ok(is_open.then(|| Mapping::at_the_cut(received, next_out)))
    }

    fn tail(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, Broken> {
        // A segment may have been on its way to a socket when the cut was made: the socket has it.
        for side in 0..2 {
            let received = connections.received(side)?;
            connections.keep(side, received.next);
        }
        if self.has_work(connections, streams)? {
            return Ok(Turn::Wait);
        }
        connections.all_is_delivered(streams.ended);
        self.told = streams.ended;
        connections.ask_for_grace();
        self.progress = Progress::Settling;
        Ok(Turn::Wait)
    }

    fn settle(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, Broken> {
        if !connections.is_grace_over() {
            return Ok(Turn::Wait);
        }
        // An end may have slipped to a socket, and was passed on already: the flow must hear of it, or it
        // would never end.
        let has_work = self.has_work(connections, streams)? || streams.ended != self.told;
        if has_work && connections.back_to_tail() {
            self.progress = Progress::Tail;
            return Ok(Turn::Wait);
        }
        // Without the keeper, nobody can close the sockets silently: they stay open beside the translation,
        // which goes on. Once both streams have ended, the resets of a close harm nobody.
        if !connections.fall_silent() && !connections.has_ended() {
            return Ok(Turn::Wait);
        }
        Ok(Turn::Offload)
    }

    fn has_work(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<bool, Broken> {
        self.pending_bytes =
            self.pending(connections, streams, 0)? + self.pending(connections, streams, 1)?;
        let ends_wait = streams.ended != streams.end_written
            || self.has_unread_end(connections, streams, 0)?
            || self.has_unread_end(connections, streams, 1)?;
        Ok(ends_wait || streams.held != [0, 0] || self.pending_bytes > 0)
    }

    /// An end that the relay has not read counts as a received byte, but not as an unread one. It has been
    /// acknowledged: once the socket is closed, nobody would pass it on.
    fn has_unread_end(
        &self,
        connections: &mut impl Connections,
        streams: &Streams,
        side: usize,
    ) -> Result<bool, Broken> {
        if streams.ended[side] {
            return Ok(false);
        }
        let Received { next, unread } = connections.received(side)?;
        let bytes = streams.written[1 - side] + streams.held[1 - side] + u64::from(unread);
        Ok(self.heard[side].is_some_and(|heard| heard.after(bytes) != next))
    }

    /// The bytes that the socket of this side still has to deliver. Acknowledgements that the programs have
    /// heard count, too: the last copy of one may have been lost, and if no peer speaks any more, the socket
    /// never gets another.
    fn pending(
        &self,
        connections: &mut impl Connections,
        streams: &Streams,
        side: usize,
    ) -> Result<u64, Broken> {
        let Pending { unread, unacknowledged } = connections.pending_bytes(side)?;
        let is_delivered = self.positions[side].is_some_and(|position| {
            let end = position.after(streams.written[side]);
            // Our FIN on this side ends the stream that came from the other one.
            let has_fin = streams.end_written[1 - side];
            connections.has_acknowledged(side, end.wrapping_add(has_fin.into()))
        });
        Ok(if is_delivered { unread } else { unread + unacknowledged })
    }
}

#[cfg(test)]
mod tests;
