//! A response, checked as it arrives: status, length, and every byte of the page.

use httparse::{EMPTY_HEADER, Response, Status};

use crate::page::{PAGE_BYTES, page};

/// The request that wrk sends.
pub(super) const REQUEST: &[u8] = b"GET /1kb HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The most bytes and fields of a head; a longer one is wrong.
const HEAD_BYTES_MAX: usize = 8192;
const FIELDS_MAX: usize = 32;

/// The progress of a response.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The head, while it is incomplete.
    head: Vec<u8>,
    stage: Stage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Head,
    /// This many bytes of the page have arrived.
    Body(usize),
    /// It is wrong: nothing more is expected, and no further response.
    Wrong,
}

impl Answer {
    /// Whether it is complete, or wrong already.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Body(PAGE_BYTES) | Stage::Wrong)
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.stage == Stage::Wrong
    }

    /// Expects another one. After a wrong one it stays wrong, because its end is unknown.
    pub(super) fn expect_next(&mut self) {
        if !self.is_wrong() {
            self.stage = Stage::Head;
        }
    }

    /// Takes the next bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        match self.stage {
            Stage::Head => self.take_head(bytes),
            Stage::Body(seen) => self.take_body(seen, bytes),
            Stage::Wrong => {}
        }
    }

    fn take_head(&mut self, bytes: &[u8]) {
        if self.head.is_empty() {
            // Usually it arrives in one piece.
            return match length_of_head(bytes) {
                Ok(Some(length)) => self.take_body(0, &bytes[length..]),
                Ok(None) => self.head.extend_from_slice(bytes),
                Err(Unexpected) => self.stage = Stage::Wrong,
            };
        }
        self.head.extend_from_slice(bytes);
        let so_far = std::mem::take(&mut self.head);
        match length_of_head(&so_far) {
            Ok(Some(length)) => self.take_body(0, &so_far[length..]),
            Ok(None) if so_far.len() <= HEAD_BYTES_MAX => self.head = so_far,
            Ok(None) | Err(Unexpected) => self.stage = Stage::Wrong,
        }
    }

    fn take_body(&mut self, seen: usize, bytes: &[u8]) {
        let expected = page().get(seen..seen + bytes.len());
        self.stage = if expected == Some(bytes) { Stage::Body(seen + bytes.len()) } else { Stage::Wrong };
    }
}

struct Unexpected;

/// The length of the head once it is complete. It must be 200, with the page's Content-Length.
fn length_of_head(bytes: &[u8]) -> Result<Option<usize>, Unexpected> {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut response = Response::new(&mut fields);
    match response.parse(bytes) {
        Ok(Status::Partial) => Ok(None),
        Ok(Status::Complete(length)) if response.code == Some(200) && says_our_length(&response) => {
            Ok(Some(length))
        }
        _ => Err(Unexpected),
    }
}

fn says_our_length(response: &Response<'_, '_>) -> bool {
    let is_length = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case("content-length");
    let length = response.headers.iter().find(is_length).and_then(|field| str::from_utf8(field.value).ok());
    length.and_then(|text| text.parse().ok()) == Some(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Vec<u8> {
        [b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 1024\r\n\r\n", page()].concat()
    }

    fn after(parts: &[&[u8]]) -> Answer {
        let mut answer = Answer::default();
        parts.iter().for_each(|part| answer.take(part));
        answer
    }

    #[test]
    fn an_answer_may_come_in_any_parts() {
        let whole = whole();
        for cut in 0..=whole.len() {
            let answer = after(&[&whole[..cut], &whole[cut..]]);
            assert!(answer.is_over() && !answer.is_wrong(), "cut at {cut}");
        }
        assert!(!after(&[&whole[..whole.len() - 1]]).is_over());
    }

    #[test]
    fn what_differs_is_noticed() {
        let whole = whole();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(after(&[&changed]).is_wrong());
        assert!(after(&[&whole, b"!"]).is_wrong());
        assert!(after(&[b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 1024\r\n\r\n"]).is_wrong());
        assert!(after(&[b"HTTP/1.1 200 OK\r\ncontent-length: 1025\r\n\r\n"]).is_wrong());
        assert!(after(&[b"HTTP/1.1 200 OK\r\n\r\n"]).is_wrong());
        assert!(after(&[b"nonsense\r\n\r\n"]).is_wrong());
    }

    #[test]
    fn one_answer_follows_another() {
        let mut answer = after(&[&whole()]);
        answer.expect_next();
        assert!(!answer.is_over());
        answer.take(&whole());
        assert!(answer.is_over() && !answer.is_wrong());
    }
}
