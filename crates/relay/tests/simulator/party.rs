//! The program at the other end of a simulated connection: a client (with its sender) or a backend.
//!
//! A party sends an opening (a header, for example) and then its stream, reads, and ends in one of several
//! ways. It checks every byte that it reads.

use super::connection::{Connection, End};
use super::dice::{Dice, stream_byte};

/// How a party ends its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It ends its sending direction after the last byte, and continues to read.
    Fin,
    /// It waits until the other side has ended, then does the same.
    FinAfterTheirs,
    /// It closes its socket after the last byte and reads no more.
    Close,
    /// It resets once it has sent and read this many bytes.
    Reset { sent: usize, received: usize },
    /// It never ends.
    Never,
}

/// The behaviour of a party.
#[derive(Debug, Clone)]
pub(super) struct Script {
    /// Sent before the stream.
    pub(super) opening: Vec<u8>,
    /// The length of the stream.
    pub(super) length: usize,
    /// The most it sends in one call.
    pub(super) chunk: usize,
    /// The most it reads in one call.
    pub(super) gulp: usize,
    /// It reads this many bytes and then stops.
    pub(super) appetite: usize,
    pub(super) ending: Ending,
    /// The last byte of each chunk is marked urgent.
    pub(super) urgent: bool,
    /// It sends nothing before it has read this many bytes.
    pub(super) hears_first: usize,
}

impl Script {
    pub(super) fn total(&self) -> usize {
        self.opening.len() + self.length
    }

    /// A reset must not wait for more bytes than there will be.
    pub(super) fn wait_at_most_for(&mut self, bytes: usize) {
        if let Ending::Reset { received, .. } = &mut self.ending {
            *received = bytes.min(*received);
        }
    }
}

#[derive(Debug)]
pub(super) struct Party {
    script: Script,
    stream: u64,
    /// What it must read: these bytes, then the stream of the other side.
    expected_opening: Vec<u8>,
    expected_stream: u64,
    sent: usize,
    received: usize,
    pub(super) has_ended: bool,
    pub(super) saw: Option<End>,
}

impl Party {
    pub(super) fn new(script: Script, stream: u64, expected_opening: Vec<u8>, expected_stream: u64) -> Self {
        Self {
            script,
            stream,
            expected_opening,
            expected_stream,
            sent: 0,
            received: 0,
            has_ended: false,
            saw: None,
        }
    }

    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    /// Whether the other one's stream is the one it reads.
    pub(super) fn hears(&self, other: &Self) -> bool {
        self.expected_stream == other.stream
    }

    /// The number of bytes of its stream that it has sent.
    pub(super) fn sent_of_stream(&self) -> usize {
        self.sent.saturating_sub(self.script.opening.len())
    }

    /// The number of bytes of the other side's stream that it has read.
    pub(super) fn received_of_stream(&self) -> usize {
        self.received.saturating_sub(self.expected_opening.len())
    }

    /// Sends a chunk, if it has one and there is room.
    pub(super) fn send(&mut self, connection: &mut Connection, dice: &mut Dice) -> bool {
        let left = self.script.total() - self.sent;
        let most = left.min(self.script.chunk).min(connection.room_for_them());
        if self.has_ended || most == 0 || self.received < self.script.hears_first {
            return false;
        }
        let most = match self.script.ending {
            Ending::Reset { sent, .. } if self.sent < sent => most.min(sent - self.sent),
            _ => most,
        };
        let range = self.sent..self.sent + dice.up_to(most);
        self.sent = range.end;
        connection.receive(&range.map(|offset| self.byte_at(offset)).collect::<Vec<_>>());
        if self.script.urgent {
            connection.receive_urgent();
        }
        true
    }

    fn byte_at(&self, offset: usize) -> u8 {
        match offset.checked_sub(self.script.opening.len()) {
            None => self.script.opening[offset],
            Some(offset) => stream_byte(self.stream, offset),
        }
    }

    /// Reads bytes, or finds the end.
    pub(super) fn read(&mut self, connection: &mut Connection, dice: &mut Dice) -> bool {
        if self.has_ended && matches!(self.script.ending, Ending::Close | Ending::Reset { .. }) {
            return false;
        }
        let appetite = self.script.appetite - self.received.min(self.script.appetite);
        let most = connection.arrived_bytes().min(self.script.gulp).min(appetite);
        if most > 0 {
            let bytes = connection.take_arrived(dice.up_to(most));
            self.check(&bytes);
            return true;
        }
        let found = self.saw.is_none().then(|| connection.their_end()).flatten();
        self.saw = self.saw.or(found);
        found.is_some()
    }

    fn check(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let expected = match self.received.checked_sub(self.expected_opening.len()) {
                None => self.expected_opening[self.received],
                Some(offset) => stream_byte(self.expected_stream, offset),
            };
            assert_eq!(byte, expected, "wrong byte at {} of stream {}", self.received, self.expected_stream);
            self.received += 1;
        }
    }

    /// Ends when it is time.
    pub(super) fn end(&mut self, connection: &mut Connection) -> bool {
        let all_sent = self.sent == self.script.total() && self.received >= self.script.hears_first;
        let due = match self.script.ending {
            Ending::Fin | Ending::Close => all_sent,
            Ending::FinAfterTheirs => all_sent && self.saw.is_some(),
            Ending::Reset { sent, received } => {
                self.saw.is_some() || (self.sent >= sent && self.received >= received)
            }
            Ending::Never => false,
        };
        if self.has_ended || !due {
            return false;
        }
        self.has_ended = true;
        match self.script.ending {
            Ending::Close => connection.close_theirs(),
            Ending::Reset { .. } => connection.receive_reset(),
            _ => connection.receive_fin(),
        }
        true
    }
}
