//! Read buffers. The thread owns them; a connection holds one only while there are bytes in it.
//!
//! There are two sizes. Memory grows with the connections that hold bytes at one moment, not with those that are
//! open.

use std::cell::RefCell;

/// Room for one TLS record (RFC 8446 section 5.2: 2^14 + 256 bytes and its header), and a little more. It is also
/// what one read of a tunnel takes.
pub(crate) const RECORD_BYTES: usize = 20 << 10;
/// Two TLS records: one is parsed while the next is read.
pub(crate) const MESSAGE_BYTES: usize = 32 << 10;
/// Unused buffers of one size that a thread keeps: at most 2.4 MiB of both.
const MOST_KEPT: usize = 48;

thread_local! {
    static KEPT: RefCell<[Vec<Vec<u8>>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

fn shelf(bytes: usize) -> Option<usize> {
    [RECORD_BYTES, MESSAGE_BYTES].iter().position(|&size| size == bytes)
}

/// A buffer of this size; its contents are unspecified (left from the last use).
pub(crate) fn take(bytes: usize) -> Vec<u8> {
    let kept = KEPT.with_borrow_mut(|kept| kept[shelf(bytes)?].pop());
    kept.unwrap_or_else(|| vec![0; bytes])
}

/// Returns a buffer for the next [`take`]. Buffers of other sizes are dropped.
pub(crate) fn give_back(buffer: Vec<u8>) {
    let Some(shelf) = shelf(buffer.len()) else { return };
    // While a thread ends, its thread-local buffers may already be destroyed.
    let _ = KEPT.try_with(|kept| {
        let kept = &mut kept.borrow_mut()[shelf];
        if kept.len() < MOST_KEPT {
            kept.push(buffer);
        }
    });
}
