//! Reading the first bytes, in however many segments they come; what they are is said by [`HeaderReader`].
//!
//! Almost every header arrives whole, in the first segment: then it is decoded where it was read, in the worker's
//! buffer, and nothing is allocated. Only a header in pieces gets memory of its own, within a global budget.

use rustix::io::Errno;
use truepeer_policy::{HeaderReader, Opening};
use truepeer_session::budget::{Budget, Permit};

use super::half::End;
use crate::io::Io;

/// What is read at once while a header is in pieces, or while all backlogs have reached their bound: what comes behind
/// the header is held until the backend takes it.
const PIECE_BYTES: usize = 4 << 10;

/// What a sender's first bytes turned out to be. Borrows from where they were read to.
pub(crate) enum Read<'a> {
    /// What all bytes so far amount to, and they themselves.
    Opening(Opening<'a>, &'a [u8]),
    /// All sessions' headers in pieces together have reached their bound.
    OverBudget,
}

/// The first bytes of a connection.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    pending: Option<Box<Pending>>,
}

#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    permit: Permit,
}

impl FirstBytes {
    /// The bytes seen so far.
    pub(crate) fn seen(&self) -> &[u8] {
        self.pending.as_ref().map_or(&[], |pending| &pending.bytes)
    }

    /// Reads once and says what all bytes so far amount to. After [`Opening::NeedMore`] call again while
    /// `downstream` is readable.
    pub(crate) fn read<'a, I: Io>(
        &'a mut self,
        io: &mut I,
        downstream: &mut End<I::Socket>,
        scratch: &'a mut [u8],
        rules: HeaderRules<'_>,
    ) -> Read<'a> {
        let bold = self.pending.is_none() && rules.backlog_bytes.has(scratch.len());
        let most = if bold { scratch.len() } else { PIECE_BYTES };
        let length = match receive(io, downstream, &mut scratch[..most]) {
            FirstRead::Bytes(length) => length,
            FirstRead::NothingYet => return Read::Opening(Opening::NeedMore, &[]),
            FirstRead::End => return Read::Opening(rules.reader.on_end(self.seen()), self.seen()),
            FirstRead::Reset => return Read::Opening(Opening::Refused(rules.reader.on_reset()), &[]),
        };
        let piece: &'a [u8] = &scratch[..length];
        if self.pending.is_some() {
            return self.append(piece, rules);
        }
        let opening = rules.reader.on_bytes(piece);
        if opening == Opening::NeedMore && !self.keep(piece, rules.header_bytes) {
            return Read::OverBudget;
        }
        Read::Opening(opening, piece)
    }

    /// Gives the first piece memory of its own, if the budget has some.
    fn keep(&mut self, piece: &[u8], budget: &Budget) -> bool {
        let permit = budget.take(piece.len());
        self.pending = permit.map(|permit| Box::new(Pending { bytes: piece.to_vec(), permit }));
        self.pending.is_some()
    }

    fn append(&mut self, piece: &[u8], rules: HeaderRules<'_>) -> Read<'_> {
        let Some(pending) = &mut self.pending else { return Read::OverBudget };
        if !pending.permit.grow(piece.len()) {
            return Read::OverBudget;
        }
        pending.bytes.extend_from_slice(piece);
        Read::Opening(rules.reader.on_bytes(&pending.bytes), &pending.bytes)
    }
}

enum FirstRead {
    Bytes(usize),
    NothingYet,
    End,
    Reset,
}

fn receive<I: Io>(io: &mut I, downstream: &mut End<I::Socket>, buffer: &mut [u8]) -> FirstRead {
    match io.recv(&downstream.socket, buffer) {
        Ok(0) => FirstRead::End,
        Ok(length) => {
            if length < buffer.len() {
                downstream.ready.on_short_read();
            }
            FirstRead::Bytes(length)
        }
        Err(Errno::AGAIN) => {
            downstream.ready.readable = false;
            FirstRead::NothingYet
        }
        Err(Errno::INTR) => FirstRead::NothingYet,
        Err(_) => FirstRead::Reset,
    }
}

/// How first bytes are judged, and what memory there is for them.
#[derive(Clone, Copy)]
pub(crate) struct HeaderRules<'a> {
    pub(crate) reader: HeaderReader,
    pub(crate) header_bytes: &'a Budget,
    pub(crate) backlog_bytes: &'a Budget,
}
