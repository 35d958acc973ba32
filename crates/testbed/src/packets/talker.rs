//! A TCP sender whose every segment is determined by the test. It tracks the sequence numbers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::segment::{ACK, PSH, SYN, Segment, timestamps};
use super::wire::Wire;

/// One side of a connection over a [`Wire`].
pub struct Talker<'w> {
    wire: &'w Wire,
    /// Its own address.
    pub from: SocketAddr,
    /// The other end's address.
    pub to: SocketAddr,
    /// Its initial sequence number.
    pub isn: u32,
    /// Its next sequence number.
    pub seq: u32,
    /// The sequence number that it expects next.
    pub ack: u32,
    /// The timestamps of its segments: its clock, and the value that it echoes. `None`: no timestamps.
    pub clock: Option<(u32, u32)>,
}

impl<'w> Talker<'w> {
    /// Creates one that has sent nothing.
    pub fn new(wire: &'w Wire, from: SocketAddr, to: SocketAddr, isn: u32) -> Talker<'w> {
        Talker { wire, from, to, isn, seq: isn, ack: 0, clock: None }
    }

    /// Uses timestamps, with a clock that stands at this value.
    pub fn with_clock(mut self, now: u32) -> Talker<'w> {
        self.clock = Some((now, 0));
        self
    }

    /// Completes a handshake: sends a SYN, receives the SYN-ACK, and acknowledges it.
    pub fn open(&mut self) -> Result<Segment> {
        let answer = self.ask()?;
        self.send(&self.segment(ACK, b""))?;
        Ok(answer)
    }

    /// Sends a SYN and receives the SYN-ACK.
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

    /// Its SYN.
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

    /// A valid next segment.
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

    /// A valid next segment with data.
    pub fn data(&self, payload: &[u8]) -> Segment {
        self.segment(ACK | PSH, payload)
    }

    /// Sends a segment, whatever it contains.
    pub fn send(&self, segment: &Segment) -> Result<()> {
        self.wire.send(&segment.packet())
    }

    /// Sends data, and advances its sequence number.
    pub fn say(&mut self, payload: &[u8]) -> Result<()> {
        self.send(&self.data(payload))?;
        self.seq = self.seq.wrapping_add(u32::try_from(payload.len())?);
        Ok(())
    }

    /// Waits for a segment of this connection.
    pub fn hear(&self, what: &str, wanted: impl Fn(&Segment) -> bool) -> Result<Segment> {
        self.wire.hear(what, |segment| self.is_mine(segment) && wanted(segment))
    }

    /// Whether a segment of this connection arrives within this time.
    pub fn hears_within(&self, time: Duration, wanted: impl Fn(&Segment) -> bool) -> Result<bool> {
        Ok(self.wire.hear_within(time, |segment| self.is_mine(segment) && wanted(segment))?.is_some())
    }

    /// Waits until everything that it has sent is acknowledged.
    pub fn is_acknowledged(&self) -> Result<()> {
        self.hear("the acknowledgement", |segment| segment.ack == self.seq).map(drop)
    }

    fn is_mine(&self, segment: &Segment) -> bool {
        (segment.from, segment.to) == (self.to, self.from)
    }
}
