//! How a connection ends: announced, at once with a reason, or by the other end.

use super::connection::{Connection, End, Role};
use super::frame::{self, GOAWAY, PING};
use super::reason::Reason;
use super::stream::StreamError;

/// A GOAWAY of this stream announces the end. It refuses no stream.
const NO_STREAM_YET: u32 = u32::MAX >> 1;
const PING_BYTES: &[u8; 8] = b"truepeer";

impl Connection {
    /// Whether no stream can be begun any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end == End::Over
    }

    pub(super) fn set_over(&mut self) {
        self.end = End::Over;
    }

    /// Whether it has nothing left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_over() && self.streams.is_empty()
    }

    /// The connection has ended, and nothing more is sent.
    pub fn end(&mut self) {
        self.set_over();
        if self.role == Role::Client {
            let sent = self.streams.partition_point(|(id, _)| *id < self.first_unsent);
            for (_, stream) in self.streams.split_off(sent) {
                self.fail(&mut stream.borrow_mut(), StreamError::Unprocessed);
            }
        }
        self.fail_all(StreamError::Closed);
    }

    /// Ends all streams, and takes no further ones.
    pub(super) fn fail_all(&mut self, error: StreamError) {
        self.set_over();
        for (_, stream) in std::mem::take(&mut self.streams) {
            self.fail(&mut stream.borrow_mut(), error);
        }
        self.requests.clear();
    }

    /// Ends the connection with this reason.
    pub fn go_away(&mut self, reason: Reason) {
        self.write_go_away(self.newest, reason);
        self.fail_all(StreamError::Closed);
    }

    /// Tells the client to begin no more streams. Those that it has begun, or begins before it knows, are
    /// served.
    pub fn shut_down(&mut self) {
        if self.end == End::No {
            self.end = End::Announced;
            self.write_go_away(NO_STREAM_YET, Reason::NO_ERROR);
            self.ping();
            self.wake();
        }
    }

    /// The other end has answered a PING.
    pub(super) fn on_ping_answer(&mut self, payload: &[u8]) {
        if self.end == End::Announced && payload == PING_BYTES {
            self.end = End::Over;
            self.write_go_away(self.newest, Reason::NO_ERROR);
        }
    }

    fn write_go_away(&mut self, last: u32, reason: Reason) {
        frame::write_head(&mut self.out, 8, GOAWAY, 0, 0);
        self.out.extend_from_slice(&last.to_be_bytes());
        self.out.extend_from_slice(&reason.0.to_be_bytes());
    }

    /// Asks the other end for a sign of life.
    pub fn ping(&mut self) {
        frame::write_head(&mut self.out, PING_BYTES.len(), PING, 0, 0);
        self.out.extend_from_slice(PING_BYTES);
    }
}
