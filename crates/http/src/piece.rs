//! One step of reading a body.

/// The next piece of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// `len` bytes of data (at least one), after `skip` bytes that are none.
    Data {
        /// Bytes to pass over first.
        skip: usize,
        /// Bytes of data.
        len: usize,
    },
    /// Skip `skip` bytes, then read more: the rest of the input, if any, is incomplete and must stay in the
    /// buffer.
    More {
        /// Bytes to pass over.
        skip: usize,
    },
    /// The body ends after `skip` bytes. The bytes behind them belong to the next message.
    End {
        /// Bytes to pass over.
        skip: usize,
    },
}
