//! A TCP sender by hand: it knows the numbers, and says what it is told.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{ACK, PSH, SYN, Segment, Wire, timestamps};

/// One side of a connection over a [`Wire`].
pub struct Talker<'w> {
    wire: &'w Wire,
    /// Where it speaks from.
    pub from: SocketAddr,
    /// Whom it speaks to.
    pub to: SocketAddr,
    /// Its initial sequence number.
    pub isn: u32,
    /// What it says next.
    pub seq: u32,
    /// What it expects next.
    pub ack: u32,
    /// The timestamps of its segments: its clock, and what it echoes. `None`: without timestamps.
    pub clock: Option<(u32, u32)>,
}

impl<'w> Talker<'w> {
    /// One that has said nothing yet.
    pub fn new(wire: &'w Wire, from: SocketAddr, to: SocketAddr, isn: u32) -> Talker<'w> {
        Talker { wire, from, to, isn, seq: isn, ack: 0, clock: None }
    }

    /// With timestamps, by a clock that stands at this.
    pub fn with_clock(mut self, now: u32) -> Talker<'w> {
        self.clock = Some((now, 0));
        self
    }

    /// Sends a SYN, hears the SYN-ACK, and acknowledges it.
    pub fn open(&mut self) -> Result<Segment> {
        let answer = self.ask()?;
        self.send(&self.segment(ACK, b""))?;
        Ok(answer)
    }

    /// Sends a SYN and hears the SYN-ACK.
    pub fn ask(&mut self) -> Result<Segment> {
        self.send(&self.syn())?;
        let answer = self.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
        self.seq = self.isn.wrapping_add(1);
        ensure!(answer.flags == SYN | ACK && answer.ack == self.seq, "{answer:?}");
        self.ack = answer.seq.wrapping_add(1);
        if let (Some((now, _)), Some((value, _))) = (self.clock, answer.timestamps()) {
            self.clock = Some((now, value));
        }
        Ok(answer)
    }

    /// The first segment.
    pub fn syn(&self) -> Segment {
        let mss = [2, 4, 0x05, 0xb4];
        let clock = self.clock.map(|(now, _)| timestamps(now, 0)).unwrap_or_default();
        Segment {
            seq: self.isn,
            flags: SYN,
            options: [mss.as_slice(), &clock].concat(),
            ..Segment::new(self.from, self.to)
        }
    }

    /// What would be right to say next.
    pub fn segment(&self, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            seq: self.seq,
            ack: self.ack,
            flags,
            options: self.clock.map(|(now, echo)| timestamps(now, echo)).unwrap_or_default(),
            payload: payload.to_vec(),
            ..Segment::new(self.from, self.to)
        }
    }

    /// Data that would be right to say next.
    pub fn data(&self, payload: &[u8]) -> Segment {
        self.segment(ACK | PSH, payload)
    }

    /// Sends a segment, whatever it says.
    pub fn send(&self, segment: &Segment) -> Result<()> {
        self.wire.send(&segment.packet())
    }

    /// Says this next, and counts it as said.
    pub fn say(&mut self, payload: &[u8]) -> Result<()> {
        self.send(&self.data(payload))?;
        self.seq = self.seq.wrapping_add(u32::try_from(payload.len())?);
        Ok(())
    }

    /// Waits for a segment of this connection.
    pub fn hear(&self, what: &str, wanted: impl Fn(&Segment) -> bool) -> Result<Segment> {
        self.wire.hear(what, |segment| self.is_mine(segment) && wanted(segment))
    }

    /// Whether one comes in this time.
    pub fn hears_within(&self, time: Duration, wanted: impl Fn(&Segment) -> bool) -> Result<bool> {
        Ok(self.wire.hear_within(time, |segment| self.is_mine(segment) && wanted(segment))?.is_some())
    }

    /// Waits until all that it has said is acknowledged.
    pub fn is_acknowledged(&self) -> Result<()> {
        self.hear("the acknowledgement", |segment| segment.ack == self.seq).map(drop)
    }

    fn is_mine(&self, segment: &Segment) -> bool {
        (segment.from, segment.to) == (self.to, self.from)
    }
}
