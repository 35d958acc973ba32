//! Read buffers. The thread owns them; a connection holds one only while there are bytes in it.

use std::cell::RefCell;

/// Room for one TLS record (RFC 8446 section 5.2: 2^14 + 256 bytes and its header), and a little more.
pub(crate) const BUFFER_BYTES: usize = 20 << 10;
/// Unused buffers that a thread keeps.
const KEPT: usize = 16;

thread_local! {
    static KEPT_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of [`BUFFER_BYTES`]; its contents are unspecified (left from the last use).
pub(crate) fn take() -> Vec<u8> {
    let kept = KEPT_BUFFERS.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| vec![0; BUFFER_BYTES])
}

/// Returns a buffer for the next [`take`]. Buffers of other sizes are dropped.
pub(crate) fn give_back(buffer: Vec<u8>) {
    // While a thread ends, its thread-local buffers may already be destroyed.
    let _ = KEPT_BUFFERS.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if buffer.len() == BUFFER_BYTES && kept.len() < KEPT {
            kept.push(buffer);
        }
    });
}
