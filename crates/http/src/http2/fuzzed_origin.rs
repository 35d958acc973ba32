//! Any origin, and any use of its connection.

use std::task::{Context, Poll, Waker};

use super::encode::indexed;
use super::frame::*;
use super::fuzzed_peer::Peer;
use super::*;
use crate::ResponseHead;
use crate::fields::FieldList;
use crate::fuzzing::Given;

/// Requests at a time.
const MOST_REQUESTS: usize = 6;

/// Each byte is a step: a frame of the origin's, a request, data, an end.
///
/// # Panics
/// More is sent than the origin allows; a request gets bytes that were not sent for it; memory grows beyond
/// its limits; a request doesn't end with its connection; something that was written is no frame.
pub fn any_origin(bytes: &[u8]) {
    let mut given = Given(bytes);
    let pieces = 1 + usize::from(given.byte());
    let mut bed = Bed { origin: Peer::new(Role::Client, pieces), requests: Vec::new(), next: 1 };
    // Without SETTINGS at first, sometimes.
    let mut result = if given.byte() & 7 == 0 { Ok(()) } else { bed.origin.say(SETTINGS, 0, 0, &[]) };
    while result.is_ok() && !given.is_empty() {
        result = bed.step(&mut given);
        bed.origin.check(MOST_REQUESTS);
    }
    if let Err(fault) = result {
        bed.origin.state.borrow_mut().go_away(fault.reason());
    }
    bed.end();
}

struct Request {
    number: u32,
    stream: StreamHandle,
    has_head: bool,
    received: Vec<u8>,
}

struct Bed {
    origin: Peer,
    requests: Vec<Request>,
    next: u32,
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Bed {
    fn step(&mut self, given: &mut Given<'_>) -> Result<(), Fault> {
        let step = given.byte();
        match step & 15 {
            0..=8 => {
                let (flags, stream) = (given.byte(), u32::from(given.byte() & 15));
                let payload = match step >> 4 {
                    1 => b"\x08\x03103".to_vec(),
                    kind => Peer::payload(kind, &[0x88], given),
                };
                self.origin.say((step & 15) + u8::from(step & 15 >= PUSH_PROMISE), flags, stream, &payload)
            }
            9 => self.origin.feed(given.text()),
            10 | 11 => {
                self.begin(step & 16 != 0);
                Ok(())
            }
            12 => {
                self.take();
                Ok(())
            }
            13 => {
                self.send(usize::from(given.byte()) << 8, step & 16 != 0);
                Ok(())
            }
            14 if !self.requests.is_empty() => {
                let at = usize::from(step >> 4) % self.requests.len();
                drop(self.requests.remove(at));
                Ok(())
            }
            _ => {
                self.origin.take_sent();
                Ok(())
            }
        }
    }

    fn begin(&mut self, is_whole: bool) {
        if self.requests.len() >= MOST_REQUESTS || !self.origin.state.borrow().has_room(0) {
            return;
        }
        let begun = StreamHandle::begin(&self.origin.state, is_whole, |block| {
            indexed(block, 2);
            Ok(())
        });
        let Ok(stream) = begun else { return };
        let number = self.next;
        self.next += 2;
        self.origin.begin(number);
        self.requests.push(Request { number, stream, has_head: false, received: Vec::new() });
    }

    fn take(&mut self) {
        for request in &mut self.requests {
            let state = request.take();
            let sent = self.origin.sent_on(request.number);
            assert!(sent.starts_with(&request.received), "bytes that were not sent for this request");
            assert!(state != Taken::Whole || sent == request.received, "a whole response lacks bytes");
        }
    }

    fn send(&mut self, bytes: usize, ends: bool) {
        for Request { stream, .. } in &self.requests {
            if let Poll::Ready(Some(room)) = stream.poll_room(&cx(), bytes.max(1)) {
                assert!((1..=bytes.max(1)).contains(&room));
                stream.send_data(&vec![0; room], false);
            }
            if ends {
                stream.send_end(&FieldList::default());
            }
        }
    }

    /// The connection ends, and each request with it.
    fn end(mut self) {
        self.origin.state.borrow_mut().fail_all(StreamError::Closed);
        self.take();
        for request in &mut self.requests {
            assert!(request.take() != Taken::GoesOn, "a request goes on without its connection");
        }
        assert!(self.origin.state.borrow().is_done());
    }
}

/// What is known of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    GoesOn,
    /// The origin has ended it in order.
    Whole,
    Failed,
}

impl Request {
    /// Takes all that has come.
    fn take(&mut self) -> Taken {
        let mut head = ResponseHead::default();
        while !self.has_head {
            match self.stream.poll_head(&cx(), &mut head) {
                Poll::Ready(Ok(())) => self.has_head = head.status >= 200,
                Poll::Ready(Err(_)) => return Taken::Failed,
                Poll::Pending => return Taken::GoesOn,
            }
        }
        let mut data = Vec::new();
        loop {
            match self.stream.poll_data(&cx(), &mut data) {
                Poll::Ready(Ok(true)) => {
                    self.received.extend_from_slice(&data);
                    self.stream.release(data.len());
                }
                Poll::Ready(Ok(false)) => return Taken::Whole,
                Poll::Ready(Err(_)) => return Taken::Failed,
                Poll::Pending => return Taken::GoesOn,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::fuzzing::steps;

    proptest! {
        #[test]
        fn any_bytes_are_an_origin_that_is_survived(bytes in steps()) {
            super::any_origin(&bytes);
        }
    }
}
