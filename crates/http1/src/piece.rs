//! What a step of reading a body gives.

/// What is next in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// `len` bytes of data (at least one), after `skip` bytes that are none.
    Data {
        /// Bytes to pass over first.
        skip: usize,
        /// Bytes of data.
        len: usize,
    },
    /// No data, once `skip` bytes have been passed over: the input is used up, or what is left of it has to stay there
    /// until more has come.
    More {
        /// Bytes to pass over.
        skip: usize,
    },
    /// The body ends after `skip` bytes; what follows them is not its own.
    End {
        /// Bytes to pass over.
        skip: usize,
    },
}
