//! Any client, and any way of serving it.

use std::task::{Context, Poll, Waker};

use super::encode::{status, write_field};
use super::frame::*;
use super::fuzzed_peer::Peer;
use super::text::is_token;
use super::*;
use crate::fields::FieldList;
use crate::fuzzing::Given;
use crate::is_valid_host;

/// Each byte is a step: a frame of the client's, a task that takes its request or data, an answer, an end.
///
/// # Panics
/// More is sent than the client allows; a request gets bytes that were not sent for it; memory grows beyond
/// its limits; a request doesn't end with its connection; something that was written is no frame.
pub fn any_client(bytes: &[u8]) {
    let mut given = Given(bytes);
    let pieces = 1 + usize::from(given.byte());
    let mut bed = Bed { client: Peer::new(Role::Server, pieces), requests: Vec::new() };
    // Without a preface, sometimes.
    let preface: &[u8] = if given.byte() & 31 == 31 { &[] } else { CLIENT_PREFACE };
    let mut result = bed.client.feed(&[preface, &head(0, SETTINGS, 0, 0)].concat());
    while result.is_ok() && !given.is_empty() {
        result = bed.step(&mut given);
        bed.client.check(MOST_STREAMS as usize);
    }
    if let Err(fault) = result {
        bed.client.state.borrow_mut().go_away(fault.reason());
    }
    bed.end();
}

/// A request as its task sees it.
struct Request {
    stream: StreamHandle,
    received: Vec<u8>,
    has_answered: bool,
}

struct Bed {
    client: Peer,
    requests: Vec<Request>,
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// A request's usual fields. `POST` with a length, if it is told.
fn block(length: Option<u8>) -> Vec<u8> {
    let mut block = vec![if length.is_some() { 0x83 } else { 0x82 }, 0x87, 0x84, 0x41, 1, b'a'];
    if let Some(length @ 1..) = length {
        write_field(&mut block, b"content-length", length.to_string().as_bytes());
    }
    block
}

impl Bed {
    fn step(&mut self, given: &mut Given<'_>) -> Result<(), Fault> {
        let step = given.byte();
        match step & 15 {
            0..=8 => {
                let (flags, stream) = (given.byte(), u32::from(given.byte() & 31));
                let length = (step & 0x10 != 0).then(|| given.byte());
                let payload = Peer::payload(step >> 5, &block(length), given);
                self.client.say(
                    (step & 15) + u8::from(step & 15 >= PUSH_PROMISE),
                    flags,
                    stream,
                    &payload,
                )?;
            }
            9 => self.client.feed(given.text())?,
            10 => self.begin(),
            11 => self.answer(step & 16 != 0),
            12 => self.take(),
            13 => self.send(usize::from(given.byte()) << 8, step & 16 != 0),
            14 if !self.requests.is_empty() => {
                let at = usize::from(step >> 4) % self.requests.len();
                drop(self.requests.remove(at));
            }
            15 if step >> 4 == 0 => self.client.state.borrow_mut().shut_down(),
            _ => self.client.take_sent(),
        }
        Ok(())
    }

    /// Tasks begin.
    fn begin(&mut self) {
        while let Some(stream) = StreamHandle::next_request(&self.client.state) {
            if let Ok(head) = stream.take_request() {
                assert!(is_token(head.method()) && is_valid_host(head.host()), "a request that is none");
            }
            self.requests.push(Request { stream, received: Vec::new(), has_answered: false });
        }
    }

    fn answer(&mut self, ends: bool) {
        let mut block = Vec::new();
        status(&mut block, 200);
        for request in self.requests.iter_mut().filter(|request| !request.has_answered) {
            if request.stream.poll_head_room(&cx()) == Poll::Ready(true) {
                request.stream.send_head(&block, false, ends);
                request.has_answered = true;
            }
        }
    }

    fn send(&mut self, bytes: usize, ends: bool) {
        for Request { stream, .. } in self.requests.iter().filter(|request| request.has_answered) {
            if let Poll::Ready(Some(room)) = stream.poll_room(&cx(), bytes.max(1)) {
                assert!((1..=bytes.max(1)).contains(&room));
                stream.send_data(&vec![0; room], false);
            }
            if ends {
                stream.send_end(&FieldList::default());
            }
        }
    }

    fn take(&mut self) {
        for request in &mut self.requests {
            let state = request.take();
            let sent = self.client.sent_on(request.stream.id());
            assert!(sent.starts_with(&request.received), "bytes that were not sent for this request");
            assert!(state != Taken::Whole || sent == request.received, "a whole request lacks bytes");
        }
    }

    /// The connection ends, and each request with it.
    fn end(mut self) {
        self.begin();
        self.client.state.borrow_mut().fail_all(StreamError::Closed);
        self.take();
        for request in &mut self.requests {
            assert!(request.take() != Taken::GoesOn, "a request goes on without its connection");
        }
        assert!(self.client.state.borrow().is_done());
        drop(self.requests);
        assert_eq!(self.client.state.borrow().handles(), 0);
    }
}

/// What is known of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    GoesOn,
    /// The client has ended it in order.
    Whole,
    Failed,
}

impl Request {
    /// Takes all that has come.
    fn take(&mut self) -> Taken {
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
        fn any_bytes_are_a_client_that_is_survived(bytes in steps()) {
            super::any_client(&bytes);
        }
    }
}
