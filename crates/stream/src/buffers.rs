//! Read buffers. The thread owns them; a connection holds one only while there are bytes in it.
//!
//! There are two sizes. Memory grows with the connections that hold bytes at one moment, not with those that
//! are open.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Room for one TLS record (RFC 8446 section 5.2: 2^14 + 256 bytes and its header), and a little more. It is
/// also what one read of a tunnel takes.
pub const RECORD_BYTES: usize = 20 << 10;
/// Two TLS records: one is parsed while the next is read.
pub const MESSAGE_BYTES: usize = 32 << 10;
/// Unused buffers of one kind that a thread keeps: at most 2.4 MiB of both sizes, and 1 MiB to send.
const MOST_KEPT: usize = 48;

/// The first capacity of a buffer for messages to send: a head and a short body.
const OUT_BYTES: usize = 4 << 10;
/// A buffer that has grown beyond one record is not kept for the next message.
const MOST_OUT_BYTES: usize = RECORD_BYTES;

thread_local! {
    static KEPT: RefCell<[Vec<Vec<u8>>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
    static KEPT_OUT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn shelf(bytes: usize) -> Option<usize> {
    [RECORD_BYTES, MESSAGE_BYTES].iter().position(|&size| size == bytes)
}

/// A buffer of this size; its contents are unspecified (left from the last use).
pub fn take(bytes: usize) -> Vec<u8> {
    let kept = KEPT.with_borrow_mut(|kept| kept[shelf(bytes)?].pop());
    kept.unwrap_or_else(|| vec![0; bytes])
}

/// Returns a buffer for the next [`take`]. Buffers of other sizes are dropped.
pub fn give_back(buffer: Vec<u8>) {
    let Some(shelf) = shelf(buffer.len()) else { return };
    // While a thread ends, its thread-local buffers may already be destroyed.
    let _ = KEPT.try_with(|kept| {
        let kept = &mut kept.borrow_mut()[shelf];
        if kept.len() < MOST_KEPT {
            kept.push(buffer);
        }
    });
}

/// A buffer for a message to send. Dropping it returns it to its thread, so a request allocates none.
#[derive(Debug)]
pub struct OutBuffer(Vec<u8>);

impl OutBuffer {
    /// An empty one.
    pub fn take() -> Self {
        let kept = KEPT_OUT.with_borrow_mut(Vec::pop);
        Self(kept.unwrap_or_else(|| Vec::with_capacity(OUT_BYTES)))
    }
}

impl Deref for OutBuffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for OutBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for OutBuffer {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        if buffer.capacity() > MOST_OUT_BYTES {
            return;
        }
        buffer.clear();
        // Err: the thread ends, and its thread-local values are gone.
        let _ = KEPT_OUT.try_with(|kept| {
            let kept = &mut *kept.borrow_mut();
            if kept.len() < MOST_KEPT {
                kept.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_to_send_is_used_again_empty_unless_it_is_large() {
        let mut first = OutBuffer::take();
        first.extend_from_slice(b"of one client");
        let place = first.as_ptr();
        drop(first);
        let mut again = OutBuffer::take();
        assert!(again.is_empty() && again.as_ptr() == place);
        again.reserve(MOST_OUT_BYTES + 1);
        drop(again);
        assert!(OutBuffer::take().capacity() <= MOST_OUT_BYTES);
    }
}
