//! Reads the first bytes in any number of segments. [`HeaderReader`] interprets them.
//!
//! Almost every header arrives in one segment. It is then decoded in the worker's buffer, without an
//! allocation. Only a header in pieces gets memory of its own, within a global budget.

use rustix::io::Errno;
use truepeer_policy::{HeaderReader, Opening};
use truepeer_session::budget::{Budget, Permit};

use super::half::End;
use crate::io::Io;

/// The size of a read while a header is in pieces, or while the backlog budget is used up: bytes after the
/// header are held until the backend takes them.
const PIECE_BYTES: usize = 4 << 10;

/// The interpretation of a sender's first bytes. Borrows the buffer into which they were read.
pub(crate) enum Read<'a> {
    /// The result for all bytes so far, and the bytes.
    Opening(Opening<'a>, &'a [u8]),
    /// The headers in pieces of all sessions have reached their limit.
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

    /// Reads once, and returns the result for all bytes so far. After [`Opening::NeedMore`] call it again
    /// while `downstream` is readable.
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

    /// Copies the first piece into memory of its own, if the budget allows it.
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

/// The rules for first bytes, and the budget for their memory.
#[derive(Clone, Copy)]
pub(crate) struct HeaderRules<'a> {
    pub(crate) reader: HeaderReader,
    pub(crate) header_bytes: &'a Budget,
    pub(crate) backlog_bytes: &'a Budget,
}
