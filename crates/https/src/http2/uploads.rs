//! Requests whose body is still coming.
//!
//! A client may end a request before its announced length once it has seen the response's head: curl does so
//! for errors. Such a request is malformed (RFC 9113 section 8.1.1), and `h2` resets its stream together with
//! all of the response that has not been sent yet. So `h2` does not see that end: the response is completed,
//! and the request never is. Without a response, or if padding or trailers end it, the stream is reset.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

use super::frames::{DATA, END_STREAM, FrameHead, HEADERS, PADDED, RST_STREAM};

/// How many are known. Streams that `h2` refuses stay until others take their place.
const MOST: usize = 512;

/// The requests of a connection whose end has not come.
#[derive(Debug, Default)]
pub(super) struct Uploads(RefCell<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    stream: u32,
    received: u64,
    /// The announced length, once the response has begun.
    answered: Option<u64>,
    /// It has ended before its length.
    is_cut: bool,
    waker: Option<Waker>,
}

/// What must be done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// It passes as it is.
    Whole,
    /// Its END_STREAM must be hidden.
    WithoutEnd,
    /// It must be hidden: `h2` allows few empty frames.
    Hidden,
}

impl Uploads {
    /// Notes a frame of the client.
    pub(super) fn on_frame(&self, head: FrameHead) -> Pass {
        let ends = head.flags & END_STREAM != 0;
        match head.kind {
            DATA => return self.on_data(head, ends),
            HEADERS if !ends => self.begin(head.stream),
            HEADERS | RST_STREAM => self.forget(head.stream),
            _ => {}
        }
        Pass::Whole
    }

    fn on_data(&self, head: FrameHead, ends: bool) -> Pass {
        let mut entries = self.0.borrow_mut();
        let Some(at) = entries.iter().position(|entry| entry.stream == head.stream) else {
            return Pass::Whole;
        };
        let entry = &mut entries[at];
        entry.received += head.payload_bytes as u64;
        if !ends {
            return Pass::Whole;
        }
        // How much of it is padding is not known yet.
        let is_plain = head.flags & PADDED == 0;
        entry.is_cut = is_plain && entry.answered.is_some_and(|length| entry.received < length);
        if entry.is_cut {
            entry.waker.take().inspect(Waker::wake_by_ref);
            return if head.payload_bytes == 0 { Pass::Hidden } else { Pass::WithoutEnd };
        }
        entries.remove(at);
        Pass::Whole
    }

    fn begin(&self, stream: u32) {
        let mut entries = self.0.borrow_mut();
        if entries.iter().any(|entry| entry.stream == stream) {
            return;
        }
        if entries.len() == MOST {
            entries.remove(0);
        }
        entries.push(Entry { stream, received: 0, answered: None, is_cut: false, waker: None });
    }

    /// The request is not served.
    pub(super) fn forget(&self, stream: u32) {
        self.0.borrow_mut().retain(|entry| entry.stream != stream);
    }
}

/// One request's entry. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct Upload<'a> {
    uploads: &'a Uploads,
    stream: u32,
    length: Option<u64>,
}

impl<'a> Upload<'a> {
    /// `length`: what the request has announced.
    pub(super) fn new(uploads: &'a Uploads, stream: u32, length: Option<u64>) -> Self {
        Self { uploads, stream, length }
    }

    /// The response has begun.
    pub(super) fn on_response(&self) {
        let mut entries = self.uploads.0.borrow_mut();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.stream == self.stream) {
            entry.answered = self.length;
        }
    }

    /// Ready once the client has ended the request before its length, so that nothing more comes.
    pub(super) fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        let mut entries = self.uploads.0.borrow_mut();
        match entries.iter_mut().find(|entry| entry.stream == self.stream) {
            Some(entry) if entry.is_cut => Poll::Ready(()),
            Some(entry) => {
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.uploads.forget(self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: u8, flags: u8, payload_bytes: usize) -> FrameHead {
        FrameHead { kind, flags, payload_bytes, stream: 1 }
    }

    #[test]
    fn only_an_end_before_the_length_of_an_answered_request_is_hidden() {
        for (answered, length, flags, last, hidden) in [
            (true, Some(10), END_STREAM, 4, Pass::WithoutEnd),
            (true, Some(10), END_STREAM, 0, Pass::Hidden),
            (true, Some(10), END_STREAM, 5, Pass::Whole),
            (true, Some(10), END_STREAM, 6, Pass::Whole),
            (true, Some(10), END_STREAM | PADDED, 4, Pass::Whole),
            (true, Some(10), 0, 4, Pass::Whole),
            (true, None, END_STREAM, 4, Pass::Whole),
            (false, Some(10), END_STREAM, 4, Pass::Whole),
        ] {
            let uploads = Uploads::default();
            assert_eq!(uploads.on_frame(head(HEADERS, 0, 9)), Pass::Whole);
            let upload = Upload::new(&uploads, 1, length);
            assert_eq!(uploads.on_frame(head(DATA, 0, 5)), Pass::Whole);
            if answered {
                upload.on_response();
            }
            assert_eq!(
                uploads.on_frame(head(DATA, flags, last)),
                hidden,
                "{answered} {length:?} {flags} {last}"
            );
            let cut = upload.poll_cut(&Context::from_waker(Waker::noop()));
            assert_eq!(cut.is_ready(), hidden != Pass::Whole);
            drop(upload);
            assert!(uploads.0.borrow().is_empty());
        }
    }

    #[test]
    fn what_is_known_is_limited() {
        let uploads = Uploads::default();
        for stream in 0..100_000 {
            uploads.on_frame(FrameHead { stream, ..head(HEADERS, 0, 9) });
        }
        assert_eq!(uploads.0.borrow().len(), MOST);
        assert_eq!(uploads.0.borrow()[MOST - 1].stream, 99_999, "the newest are known");
        uploads.on_frame(FrameHead { stream: 99_999, ..head(HEADERS, 0, 9) });
        assert_eq!(uploads.0.borrow()[MOST - 2].stream, 99_998);
        for stream in 0..100_000 {
            uploads.on_frame(FrameHead { stream, ..head(RST_STREAM, 0, 4) });
        }
        assert!(uploads.0.borrow().is_empty());
    }
}
