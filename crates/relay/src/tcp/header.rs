//! Reading the header, in however many segments it comes.
//!
//! Almost every header arrives whole, in the first segment: then it is decoded where it was read, in the worker's
//! buffer, and nothing is allocated. Only a header in pieces gets memory of its own, within a global budget.

use rustix::io::Errno;
use truepeer_policy::HeaderRule;
use truepeer_proto::{DecodeError, DecodeErrorKind, Decoded, Header, Limits};
use truepeer_session::budget::{Budget, Permit};

use super::half::End;
use crate::io::Io;

/// What is read at once while a header is in pieces, or while all backlogs have reached their bound: what comes behind
/// the header is held until the backend takes it.
const PIECE_BYTES: usize = 4 << 10;

/// What a sender's first bytes turned out to be. Borrows from where they were read to.
pub(crate) enum Opening<'a> {
    /// Not enough of them yet.
    Incomplete,
    /// A header, and what came behind it.
    Header { header: Header<'a>, rest: &'a [u8] },
    /// No header, and none is needed: all of it is for the backend.
    Plain(&'a [u8]),
    /// The sender left before a whole header came.
    Closed,
    /// Something else than a header, or a wrong one; with what was seen of it.
    Invalid { error: DecodeError, seen: &'a [u8] },
    /// All sessions' headers in pieces together have reached their bound.
    OverBudget,
}

/// Collects one header.
#[derive(Debug, Default)]
pub(crate) struct HeaderReader {
    pending: Option<Box<Pending>>,
}

#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    permit: Permit,
}

impl HeaderReader {
    /// Whether the sender has sent nothing at all.
    pub(crate) fn is_silent(&self) -> bool {
        self.pending.is_none()
    }

    /// The bytes seen so far.
    pub(crate) fn seen(&self) -> &[u8] {
        self.pending.as_ref().map_or(&[], |pending| &pending.bytes)
    }

    /// Reads once and says what all bytes so far amount to. After [`Opening::Incomplete`] call again while
    /// `downstream` is readable.
    pub(crate) fn read<'a, I: Io>(
        &'a mut self,
        io: &mut I,
        downstream: &mut End<I::Socket>,
        scratch: &'a mut [u8],
        rules: Rules<'_>,
    ) -> Opening<'a> {
        let bold = self.is_silent() && rules.backlog_bytes.has(scratch.len());
        let most = if bold { scratch.len() } else { PIECE_BYTES };
        let length = match receive(io, downstream, &mut scratch[..most]) {
            Received::Bytes(length) => length,
            Received::NothingYet => return Opening::Incomplete,
            Received::End => return Opening::Closed,
        };
        let piece: &'a [u8] = &scratch[..length];
        if self.pending.is_some() {
            return self.append(piece, rules);
        }
        let opening = rules.judge(piece);
        if matches!(opening, Opening::Incomplete) && !self.keep(piece, rules.header_bytes) {
            return Opening::OverBudget;
        }
        opening
    }

    /// Gives the first piece memory of its own, if the budget has some.
    fn keep(&mut self, piece: &[u8], budget: &Budget) -> bool {
        let permit = budget.take(piece.len());
        self.pending = permit.map(|permit| Box::new(Pending { bytes: piece.to_vec(), permit }));
        self.pending.is_some()
    }

    fn append(&mut self, piece: &[u8], rules: Rules<'_>) -> Opening<'_> {
        let Some(pending) = &mut self.pending else { return Opening::Incomplete };
        if !pending.permit.grow(piece.len()) {
            return Opening::OverBudget;
        }
        pending.bytes.extend_from_slice(piece);
        rules.judge(&pending.bytes)
    }
}

enum Received {
    Bytes(usize),
    NothingYet,
    End,
}

fn receive<I: Io>(io: &mut I, downstream: &mut End<I::Socket>, buffer: &mut [u8]) -> Received {
    match io.recv(&downstream.socket, buffer) {
        Ok(0) => Received::End,
        Ok(length) => {
            if length < buffer.len() {
                downstream.ready.on_short_read();
            }
            Received::Bytes(length)
        }
        Err(Errno::AGAIN) => {
            downstream.ready.readable = false;
            Received::NothingYet
        }
        Err(Errno::INTR) => Received::NothingYet,
        Err(_) => Received::End,
    }
}

/// How first bytes are judged.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) header: HeaderRule,
    pub(crate) limits: Limits,
    pub(crate) header_bytes: &'a Budget,
    pub(crate) backlog_bytes: &'a Budget,
}

impl Rules<'_> {
    fn judge<'a>(&self, bytes: &'a [u8]) -> Opening<'a> {
        match truepeer_proto::decode(bytes, self.limits) {
            Ok(Decoded::Done { header, consumed }) => Opening::Header { header, rest: &bytes[consumed..] },
            Ok(Decoded::NeedMore { .. }) => Opening::Incomplete,
            Err(error) if self.header == HeaderRule::Optional && error.kind == DecodeErrorKind::NotProxy => {
                Opening::Plain(bytes)
            }
            Err(error) => Opening::Invalid { error, seen: bytes },
        }
    }
}
