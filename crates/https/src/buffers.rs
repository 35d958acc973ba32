//! Buffers for what is being read, of the thread and not of a connection: held only while they hold something.

use std::cell::RefCell;

/// One record of TLS (RFC 8446, 5.2: 2^14 + 256 bytes, and its head), and some more.
pub(crate) const BUFFER_BYTES: usize = 20 << 10;
/// What a thread keeps for the next reads.
const KEPT: usize = 16;

thread_local! {
    static KEPT_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of [`BUFFER_BYTES`]; what is in it is somebody else's.
pub(crate) fn take() -> Vec<u8> {
    let kept = KEPT_BUFFERS.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| vec![0; BUFFER_BYTES])
}

/// For the next one who [takes](take) one. Buffers of other sizes are dropped.
pub(crate) fn give_back(buffer: Vec<u8>) {
    // The thread may be ending, and its buffers gone.
    let _ = KEPT_BUFFERS.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if buffer.len() == BUFFER_BYTES && kept.len() < KEPT {
            kept.push(buffer);
        }
    });
}
