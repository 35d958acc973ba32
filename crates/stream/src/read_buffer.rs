//! Bytes that were read and not used yet. A connection that waits for its next message holds no buffer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::buffers::{self, MESSAGE_BYTES};

/// A buffer that holds memory only while bytes are in it.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// One that holds these bytes.
    pub fn holding(data: &[u8]) -> Self {
        if data.is_empty() {
            return Self::default();
        }
        let mut bytes = buffers::take(MESSAGE_BYTES);
        bytes.resize(bytes.len().max(data.len()), 0);
        bytes[..data.len()].copy_from_slice(data);
        Self { bytes, start: 0, end: data.len() }
    }

    /// The bytes read and not used.
    pub fn data(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Whether it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether it is full until [`Self::grow`].
    pub fn is_full(&self) -> bool {
        !self.bytes.is_empty() && self.end - self.start == self.bytes.len()
    }

    /// The first `len` bytes have been used.
    pub fn consume(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes the unused bytes.
    pub fn take(&mut self) -> Vec<u8> {
        let data = self.data().to_vec();
        self.consume(data.len());
        self.rest();
        data
    }

    /// Releases the memory if the buffer is empty.
    pub fn rest(&mut self) {
        if self.is_empty() && !self.bytes.is_empty() {
            buffers::give_back(std::mem::take(&mut self.bytes));
        }
    }

    /// Doubles the memory, for long heads.
    pub fn grow(&mut self) {
        self.bytes.resize((self.bytes.len() * 2).max(MESSAGE_BYTES), 0);
    }

    /// Reads some bytes behind those it holds; 0 is the end of the stream. The buffer must not be full.
    pub fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.is_empty() {
            self.bytes = buffers::take(MESSAGE_BYTES);
        } else if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        debug_assert!(!self.is_full(), "nothing fits into a full buffer");
        let mut space = ReadBuf::new(&mut self.bytes[self.end..]);
        let polled = Pin::new(stream).poll_read(cx, &mut space);
        let len = space.filled().len();
        if polled.is_pending() {
            self.rest();
        }
        ready!(polled)?;
        self.end += len;
        Poll::Ready(Ok(len))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        buffers::give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn fill(buffer: &mut Buffer, mut from: &[u8]) -> usize {
        match buffer.poll_fill(&mut Context::from_waker(Waker::noop()), &mut from) {
            Poll::Ready(Ok(len)) => len,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut buffer = Buffer::default();
        assert_eq!(fill(&mut buffer, b"hello"), 5);
        buffer.consume(2);
        assert_eq!(fill(&mut buffer, b" you"), 4);
        assert_eq!(buffer.data(), b"llo you");
        buffer.consume(7);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_full_buffer_can_grow() {
        let mut buffer = Buffer::default();
        let long = vec![7; MESSAGE_BYTES + 1];
        assert_eq!(fill(&mut buffer, &long), MESSAGE_BYTES);
        assert!(buffer.is_full());
        buffer.grow();
        assert_eq!(fill(&mut buffer, &long[MESSAGE_BYTES..]), 1);
        assert_eq!(buffer.data(), long);
        buffer.consume(MESSAGE_BYTES);
        assert_eq!(buffer.data(), [7]);
    }

    #[test]
    fn bytes_that_were_read_before_come_first() {
        for length in [1, MESSAGE_BYTES - 1, MESSAGE_BYTES, MESSAGE_BYTES + 1] {
            let first = vec![7; length];
            let mut buffer = Buffer::holding(&first);
            assert_eq!(buffer.data(), first);
            assert_eq!(buffer.is_full(), length >= MESSAGE_BYTES);
            if buffer.is_full() {
                buffer.grow();
            }
            assert_eq!(fill(&mut buffer, b"more"), if length == MESSAGE_BYTES - 1 { 1 } else { 4 });
            assert!(buffer.data().starts_with(&first));
        }
        assert!(Buffer::holding(&[]).bytes.is_empty());
    }

    #[test]
    fn memory_is_held_only_for_bytes() {
        let mut buffer = Buffer::default();
        fill(&mut buffer, b"x");
        buffer.consume(1);
        buffer.rest();
        assert!(buffer.bytes.is_empty());
    }
}
