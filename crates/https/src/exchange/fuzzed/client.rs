//! A client: the requests that it sends, and a check of what it gets.

use std::net::Ipv4Addr;

use truepeer_http::fuzzing::Given;

use super::line::Line;
use super::origin::Origin;
use super::plain::{Framing, Message, message};
use super::{body, chunked};

/// A client composes at most so many bytes.
const MOST_BYTES: usize = 128 << 10;

/// A request that a client sends.
pub(super) struct Asked {
    pub(super) method: &'static str,
    is_http_10: bool,
    pub(super) body: Vec<u8>,
    pub(super) has_trailer: bool,
    pub(super) upgrades: bool,
    pub(super) expects: bool,
    /// It authenticates the origin's connection.
    pub(super) binds: bool,
    /// It is ambiguous: truepeer must refuse it.
    pub(super) is_ambiguous: bool,
    /// Where it begins and ends in the client's text.
    begin: usize,
    pub(super) end: usize,
    /// How often its head has reached an origin, and whether bytes of its body have.
    pub(super) reached: usize,
    pub(super) body_reached: bool,
}

impl Asked {
    pub(super) fn is_idempotent(&self) -> bool {
        self.method != "POST"
    }
}

#[derive(Default)]
pub(super) struct Client {
    pub(super) line: Line,
    pub(super) asked: Vec<Asked>,
    /// All that it sends, and how much of that it has sent.
    pub(super) text: Vec<u8>,
    pub(super) delivered: usize,
    /// It sends any bytes behind this many requests.
    pub(super) raw_from: Option<usize>,
    pub(super) has_ended: bool,
    /// The response that it reads, where that begins, and what the last one said.
    pub(super) slot: usize,
    at: usize,
    stage: Stage,
    /// truepeer's own response to HEAD: it has a body if the method had come, but was not read yet when the
    /// time was over.
    may_have_body: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    /// No response follows.
    Closed,
    /// Behind this 101 of an origin.
    Switched { origin: usize, reply: usize },
}

pub(super) fn address(number: usize) -> Ipv4Addr {
    // The last two connections belong to one client.
    Ipv4Addr::new(203, 0, 113, [7, 8, 9, 9][number])
}

impl Client {
    pub(super) fn new(line: Line) -> Self {
        Self { line, ..Self::default() }
    }

    /// Composes a request. Each byte that is given decides something.
    pub(super) fn ask(&mut self, number: usize, given: &mut Given<'_>) {
        let (kind, length) = (given.byte(), usize::from(given.byte()));
        let special = if kind & 0x80 == 0 { 0 } else { given.byte() };
        let length = if length < 200 { length } else { (length - 199) * 700 };
        if self.text.len() + length > MOST_BYTES {
            return;
        }
        let method = ["GET", "POST", "HEAD", "PUT"][usize::from(kind & 3)];
        let is_http_10 = kind & 0x40 != 0;
        let framing = if is_http_10 { kind >> 2 & 1 } else { kind >> 2 & 3 };
        let (slot, begin) = (self.asked.len(), self.text.len());
        let body = if framing == 0 { Vec::new() } else { body(slot + number * 50, length) };
        let mut asked = Asked {
            method,
            is_http_10,
            has_trailer: framing == 3,
            upgrades: false,
            expects: kind & 0x10 != 0,
            binds: false,
            is_ambiguous: false,
            begin,
            end: 0,
            reached: 0,
            body_reached: false,
            body,
        };
        let version = if is_http_10 { "HTTP/1.0" } else { "HTTP/1.1" };
        let mut text = format!("{method} /{number}/{slot} {version}\r\nHost: a\r\n");
        if asked.expects {
            text += "Expect: 100-continue\r\n";
        }
        if kind & 0x20 != 0 {
            text += if is_http_10 { "Connection: keep-alive\r\n" } else { "Connection: close\r\n" };
        }
        if special & 1 != 0 {
            text += "X-Forwarded-For: 192.0.2.66\r\nForwarded: for=192.0.2.66\r\nX-Real-IP: 192.0.2.66\r\n";
        }
        match special >> 1 & 7 {
            1 if kind & 0x60 == 0 && framing == 0 => {
                asked.upgrades = true;
                text += "Connection: upgrade\r\nUpgrade: websocket\r\n";
            }
            2 => {
                asked.binds = true;
                text += "Authorization: NTLM a\r\n";
            }
            3 if framing != 0 => {
                asked.is_ambiguous = true;
                text += ["Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 3\r\n"]
                    [usize::from(framing == 1 && special & 0x10 != 0)];
            }
            4 => {
                asked.is_ambiguous = true;
                text += "Transfer-Encoding: identity, chunked\r\n";
            }
            _ => {}
        }
        self.text.extend_from_slice(text.as_bytes());
        match framing {
            0 => self.text.extend_from_slice(b"\r\n"),
            1 => {
                self.text
                    .extend_from_slice(format!("Content-Length: {}\r\n\r\n", asked.body.len()).as_bytes());
                self.text.extend_from_slice(&asked.body);
            }
            _ => {
                self.text.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                let trailer = asked.has_trailer.then(|| format!("{number}/{slot}"));
                chunked(&mut self.text, &asked.body, slot, trailer.as_deref());
            }
        }
        asked.end = self.text.len();
        self.asked.push(asked);
    }

    /// Whether it may have sent any bytes by now.
    pub(super) fn is_raw(&self) -> bool {
        self.raw_from.is_some()
    }

    /// Whether a 101 has come whole.
    pub(super) fn has_switched(&self) -> bool {
        matches!(self.stage, Stage::Switched { .. })
    }

    /// Whether it waits for no further response.
    pub(super) fn is_done(&self) -> bool {
        self.slot >= self.asked.len() || self.stage != Stage::Open
    }

    /// Reads what truepeer has sent.
    pub(super) fn check(&mut self, number: usize, origins: &[Origin]) {
        let line = self.line.clone();
        line.sent(|sent| {
            while self.stage == Stage::Open && self.next(number, &sent[self.at..], origins) {}
            match self.stage {
                Stage::Switched { origin, reply } => {
                    self.check_switched(&sent[self.at..], &origins[origin], reply)
                }
                Stage::Closed => {
                    let behind = String::from_utf8_lossy(&sent[self.at..]);
                    assert!(self.may_have_body || behind.is_empty(), "behind the last response: {behind:?}");
                }
                Stage::Open => {}
            }
        });
    }

    /// Reads the next message. Returns whether it is whole.
    fn next(&mut self, number: usize, bytes: &[u8], origins: &[Origin]) -> bool {
        if self.raw_from.is_some_and(|from| self.slot >= from) || bytes.is_empty() {
            return false;
        }
        let asked = self.asked.get(self.slot);
        // truepeer knows the method once that has come.
        let is_head = asked
            .is_some_and(|asked| asked.method == "HEAD" && self.delivered >= asked.begin + "HEAD ".len());
        let is_http_10 = asked.is_some_and(|asked| asked.is_http_10);
        let message = message(bytes, |head| match &head.first[9..12] {
            "204" | "304" => Framing::Nothing,
            status if status.starts_with('1') || is_head => Framing::Nothing,
            _ => head.framing().unwrap_or_else(|| {
                assert!(is_http_10, "a response without an end");
                Framing::UntilClose
            }),
        });
        let ends = self.line.ends();
        // A client sees that a part of a head is missing, however the connection ends.
        let Some(message) = message else { return false };
        assert!(message.head.first.starts_with("HTTP/1.1 "));
        let status = message.head.first[9..12].parse().expect("a status");
        if matches!(status, 100 | 102..200) {
            let asked = asked.expect("an interim response belongs to a request");
            assert!(!is_http_10 && (status != 100 || asked.expects));
            self.at += message.length;
            return true;
        }
        let tag = message.head.only("X-Tag");
        self.may_have_body = is_head && tag.is_none();
        // Its own has a length: a client that reads no more within the time-out sees that a part is missing.
        let may_break = tag.is_none() && !message.is_until_close;
        let is_whole = match tag {
            Some(tag) => self.check_reply(number, tag, status, &message, origins),
            None => self.check_own(status, &message, origins),
        };
        if !is_whole {
            assert!(!ends.in_order || may_break, "an orderly end within a response");
            return false;
        }
        self.at += message.length;
        if self.stage == Stage::Open && (message.is_until_close || message.head.has("Connection", "close")) {
            self.stage = Stage::Closed;
        }
        self.slot += 1;
        true
    }

    /// Compares a response with what its origin sent. Returns whether it is whole.
    fn check_reply(
        &mut self,
        number: usize,
        tag: &str,
        status: u16,
        message: &Message,
        origins: &[Origin],
    ) -> bool {
        let (origin, reply) = tag.split_once('.').expect("a tag");
        let (at, which): (usize, usize) = (origin.parse().expect("a tag"), reply.parse().expect("a tag"));
        let (origin, asked) = (&origins[at], &self.asked[self.slot]);
        let is_whole = message.is_whole || message.is_until_close && self.line.ends().in_order;
        assert!(self.delivered > asked.begin, "a response before its request");
        if origin.raw_from.is_some_and(|from| which >= from) {
            if status == 101 {
                self.stage = Stage::Switched { origin: at, reply: which };
            }
            return is_whole;
        }
        let reply = &origin.replies[which];
        assert!(reply.is_solicited, "the response {tag} to no request was passed on");
        // Without a whole head, the origin doesn't know which request it answers.
        let of = origin.begun.get(which).copied().unwrap_or((number, self.slot));
        assert_eq!(of, (number, self.slot), "the response {tag} to another request");
        assert_eq!(status, reply.status);
        if status == 101 {
            assert!(asked.upgrades);
            self.stage = Stage::Switched { origin: at, reply: which };
            return true;
        }
        if asked.method != "HEAD" && !matches!(status, 204 | 304) {
            assert!(reply.body.starts_with(&message.body), "the body of {tag} was changed");
            if is_whole {
                // A body without a length is what has come when its origin ends it.
                let unsent = reply.end.saturating_sub(origin.delivered);
                assert!(message.body.len() + unsent == reply.body.len(), "a part of {tag} looks whole");
                let may_end = if reply.is_until_close { origin.has_ended } else { unsent == 0 };
                assert!(may_end, "{tag} looks whole too early");
            }
            if let Some(trailers) = &message.trailers {
                assert_eq!(trailers.only("X-Check"), reply.has_trailer.then_some(tag));
            }
        }
        if is_whole && self.delivered < asked.end {
            let closes = message.is_until_close || message.head.has("Connection", "close");
            assert!(closes, "the rest of a request would be the next one");
        }
        is_whole
    }

    /// A response of truepeer's own, or of an origin that has sent any bytes.
    fn check_own(&mut self, status: u16, message: &Message, origins: &[Origin]) -> bool {
        let is_any = origins.iter().any(|origin| origin.raw_from.is_some());
        let is_whole = message.is_whole || message.is_until_close && self.line.ends().in_order;
        if is_any {
            if status == 101 {
                self.raw_from = Some(0);
            }
            return is_whole;
        }
        assert!([400, 408, 413, 502, 503, 504].contains(&status), "{status}");
        assert!(message.head.has("Connection", "close"));
        is_whole
    }

    /// Behind a 101, all bytes are the origin's.
    fn check_switched(&self, bytes: &[u8], origin: &Origin, reply: usize) {
        if origin.raw_from.is_some_and(|from| reply >= from) {
            return;
        }
        let sent = &origin.text[origin.replies[reply].end..origin.delivered];
        assert!(sent.starts_with(bytes), "bytes were changed behind a 101");
        let ends = self.line.ends();
        assert!(
            !ends.in_order || origin.has_ended && sent.len() == bytes.len(),
            "an orderly end behind a 101"
        );
    }
}
