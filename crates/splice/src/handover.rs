//! The hand-over's stages.

use truepeer_bpf::Ended;
use truepeer_sys::CallError;
use truepeer_sys::repair::Received;

use crate::mapping::{Mapping, Position};

/// What a hand-over asks of the session's two connections and its flow. Side 0 is downstream.
pub trait Connections {
    /// Whether the programs have heard socket and peer of this side.
    fn is_heard(&self, side: usize) -> bool;
    /// See [`truepeer_sys::repair::next_to_write`].
    ///
    /// # Errors
    /// What the kernel says.
    fn next_to_write(&mut self, side: usize) -> Result<Option<u32>, CallError>;
    /// What the socket has received.
    ///
    /// # Errors
    /// What the kernel says.
    fn received(&mut self, side: usize) -> Result<Received, CallError>;
    /// Neither end of the connection has come, even if it lies unread.
    ///
    /// # Errors
    /// What the kernel says.
    fn is_established(&mut self, side: usize) -> Result<bool, CallError>;
    /// Bytes that the peer has not acknowledged, and bytes that have not been read.
    ///
    /// # Errors
    /// What the kernel says.
    fn has_work(&mut self, side: usize) -> Result<bool, CallError>;
    /// From here on a process that dies resets both connections.
    fn reset_when_closed(&mut self);
    /// Begins to translate.
    fn cut(&mut self, mapping: &Mapping);
    /// The socket has its peer's bytes up to this number.
    fn keep(&mut self, side: usize, next: u32);
    /// Everything is translated from now on. False: the flow has ended by itself.
    fn all_is_delivered(&mut self, ended: Ended) -> bool;
    /// The reverse, unless the flow has ended by itself.
    fn back_to_tail(&mut self) -> bool;
    /// Asks for a grace period: no program that saw an older stage runs after it.
    fn ask_for_grace(&mut self);
    /// Whether it is over.
    fn is_grace_over(&self) -> bool;
}

/// The session's streams, as the relay counts them. Index: the side that is written to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streams {
    /// Bytes that its socket has taken.
    pub written: [u64; 2],
    /// Bytes that were read from the other side and wait to be written.
    pub held: [u64; 2],
    /// The stream from this side has been read to its end.
    pub ended: [bool; 2],
    /// The end was written to the other side.
    pub end_written: [bool; 2],
}

/// What the relay has to do until it gives the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing but its usual work. Next turn: when something has moved, or after some milliseconds.
    Wait,
    /// Write nothing to this side meanwhile: what it has must be sent first.
    Hold(usize),
    /// The session ends as any does: it is not worth it, or can't be done. The reason is for the counters.
    StayHere(&'static str),
    /// Close both sockets silently, and forget the session.
    LetGo,
}

/// A hand-over that can't go back: both connections have to be reset.
#[derive(Debug, thiserror::Error)]
#[error("a connection broke while it was handed over: {0}")]
pub struct Broken(#[from] pub CallError);

/// How far a hand-over is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Until the cut the session can stay in user space.
    Armed,
    /// Translated, while the sockets deliver what they have.
    Tail,
    /// Waits for a grace period.
    Settling,
}

/// A session's hand-over.
#[derive(Debug)]
pub struct Handover {
    positions: [Option<Position>; 2],
    progress: Progress,
}

impl Default for Handover {
    fn default() -> Self {
        Self { positions: [None; 2], progress: Progress::Armed }
    }
}

impl Handover {
    /// Of sockets whose positions are known already: best asked when nothing was written yet, because later the relay may have to hold its
    /// bytes back until all that it wrote was sent.
    #[must_use]
    pub fn knowing(positions: [Option<Position>; 2]) -> Self {
        Self { positions, progress: Progress::Armed }
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    /// [`Broken`], after the cut only: before it, a failure is a [`Turn::StayHere`].
    pub fn turn(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, Broken> {
        match self.progress {
            Progress::Armed => Ok(match self.arm(connections, streams) {
                Ok(turn) => turn,
                Err(_) => Turn::StayHere("the kernel does not tell the numbers"),
            }),
            Progress::Tail => self.tail(connections, streams),
            Progress::Settling => self.settle(connections, streams),
        }
    }

    fn arm(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, CallError> {
        if streams.ended != [false; 2] {
            return Ok(Turn::StayHere("one side has ended"));
        }
        if !(connections.is_heard(0) && connections.is_heard(1)) {
            return Ok(Turn::Wait);
        }
        // One after the other: held both at once, an echo would wait for ever.
        for side in [1, 0] {
            if self.positions[side].is_none() {
                let Some(next) = connections.next_to_write(side)? else { return Ok(Turn::Hold(side)) };
                self.positions[side] = Some(Position::new(next, streams.written[side]));
            }
        }
        let [Some(down), Some(up)] = self.positions else { return Ok(Turn::Wait) };
        let next_out = [(down, 0), (up, 1)]
            .map(|(position, side)| position.after(streams.written[side] + streams.held[side]));
        let received = [connections.received(0)?, connections.received(1)?];
        // Asked after that: an end that lies unread is counted in `received.next`, not in `received.unread`.
        if !(connections.is_established(0)? && connections.is_established(1)?) {
            return Ok(Turn::StayHere("one side has ended"));
        }
        connections.reset_when_closed();
        connections.cut(&Mapping::at_the_cut(received, next_out));
        self.progress = Progress::Tail;
        Ok(Turn::Wait)
    }

    fn tail(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, Broken> {
        // A segment may have been on its way to a socket when the cut was made: the socket has it.
        for side in 0..2 {
            let received = connections.received(side)?;
            connections.keep(side, received.next);
        }
        if has_work(connections, streams)? {
            return Ok(Turn::Wait);
        }
        connections.all_is_delivered(streams.ended);
        connections.ask_for_grace();
        self.progress = Progress::Settling;
        Ok(Turn::Wait)
    }

    fn settle(&mut self, connections: &mut impl Connections, streams: &Streams) -> Result<Turn, Broken> {
        if !connections.is_grace_over() {
            return Ok(Turn::Wait);
        }
        if has_work(connections, streams)? && connections.back_to_tail() {
            self.progress = Progress::Tail;
            return Ok(Turn::Wait);
        }
        Ok(Turn::LetGo)
    }
}

fn has_work(connections: &mut impl Connections, streams: &Streams) -> Result<bool, Broken> {
    let ends_wait = streams.ended != streams.end_written;
    Ok(ends_wait || streams.held != [0, 0] || connections.has_work(0)? || connections.has_work(1)?)
}
