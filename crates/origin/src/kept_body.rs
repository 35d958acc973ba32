//! The start of a request's body, kept until the response begins, so that the request can be sent a second
//! time.

use std::cell::{Cell, RefCell};

use truepeer_http::fields::FieldList;

use super::failure::Failure;
use super::parties::{Departure, Incoming};

/// A piece that begins within these bytes is kept. An origin that does not process a request does not open
/// the windows for it, which are 65,535 bytes unless its SETTINGS say more. No further piece is taken from
/// the client before they have room.
const KEPT_BYTES: usize = 64 << 10;
/// A kept start is given out in pieces of this size.
const PIECE_BYTES: usize = 16 << 10;

/// The part of a request's body that was taken from the client.
#[derive(Debug, Default)]
pub struct BodyStart {
    keeps: Cell<bool>,
    kept: RefCell<Vec<u8>>,
    /// A piece was taken and is not kept.
    is_lost: Cell<bool>,
}

impl BodyStart {
    /// If it `keeps` nothing, a request is sent a second time only as long as no part of its body was taken.
    pub fn new(keeps: bool) -> Self {
        Self { keeps: Cell::new(keeps), ..Self::default() }
    }

    /// Whether all that was taken can be sent again.
    pub fn is_whole(&self) -> bool {
        !self.is_lost.get()
    }

    /// Whether a part of the body was taken.
    pub fn was_taken(&self) -> bool {
        self.is_lost.get() || !self.kept.borrow().is_empty()
    }

    /// The response has begun: the request is not sent again.
    pub fn release(&self) {
        self.keeps.set(false);
        self.is_lost.set(true);
        self.kept.take();
    }

    /// Nothing more is kept: over HTTP/1.1 a request is not repeated once a part of its body was taken.
    pub fn keep_no_more(&self) {
        self.keeps.set(false);
        if !self.kept.take().is_empty() {
            self.is_lost.set(true);
        }
    }

    fn note(&self, piece: &[u8]) {
        let mut kept = self.kept.borrow_mut();
        if self.keeps.get() && kept.len() < KEPT_BYTES {
            kept.extend_from_slice(piece);
        } else {
            drop(kept);
            self.release();
        }
    }
}

/// A body, from its start at each attempt.
pub struct KeptBody<'a, I> {
    incoming: &'a mut I,
    start: &'a BodyStart,
    /// The kept start, which this attempt has sent up to `sent`.
    again: Vec<u8>,
    sent: usize,
    has_ended: bool,
}

impl<'a, I> KeptBody<'a, I> {
    /// Keeps what `start` has room for.
    pub fn new(incoming: &'a mut I, start: &'a BodyStart) -> Self {
        Self { incoming, start, again: Vec::new(), sent: 0, has_ended: false }
    }

    /// Begins again. Everything that was taken must be kept.
    pub fn rewind(&mut self) {
        self.again.clone_from(&self.start.kept.borrow());
        self.sent = 0;
    }
}

impl<I: Incoming> Incoming for KeptBody<'_, I> {
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        if self.sent < self.again.len() {
            let from = self.sent;
            self.sent = self.again.len().min(from + PIECE_BYTES);
            return Ok(Some(&self.again[from..self.sent]));
        }
        if self.has_ended {
            return Ok(None);
        }
        let piece = self.incoming.next().await?;
        match piece {
            Some(piece) => self.start.note(piece),
            None => self.has_ended = true,
        }
        Ok(piece)
    }

    fn trailers(&self) -> &FieldList {
        self.incoming.trailers()
    }

    async fn departure(&mut self) -> Departure {
        self.incoming.departure().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_over_http1() {
        let start = BodyStart::new(true);
        start.note(b"before");
        assert!(start.is_whole() && start.was_taken());
        start.keep_no_more();
        start.note(b"after");
        assert!(!start.is_whole() && start.kept.borrow().capacity() == 0);
        // Nothing was taken yet: the request can still be sent a second time.
        let start = BodyStart::new(true);
        start.keep_no_more();
        assert!(start.is_whole() && !start.was_taken());
        start.note(b"after");
        assert!(!start.is_whole() && start.kept.borrow().is_empty());
    }
}
