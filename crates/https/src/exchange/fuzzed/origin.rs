//! A connection to the origin: the responses that it sends, and a check of the requests that it gets.

use truepeer_http::fuzzing::Given;

use super::client::{Client, address};
use super::line::Line;
use super::plain::{Framing, message};
use super::{body, chunked};
use crate::exchange::Sharing;

/// An origin composes at most so many bytes for each connection.
const MOST_BYTES: usize = 128 << 10;

/// A response that an origin sends.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    pub(super) has_trailer: bool,
    pub(super) is_until_close: bool,
    /// Where it begins and ends in the origin's text.
    begin: usize,
    pub(super) end: usize,
    /// truepeer may take it for the response to a request.
    pub(super) is_solicited: bool,
}

pub(super) struct Origin {
    pub(super) line: Line,
    /// The requests that have begun, by client and number, and how many of them are whole.
    pub(super) begun: Vec<(usize, usize)>,
    pub(super) whole: usize,
    pub(super) replies: Vec<Reply>,
    /// All that it sends, and how much of that it has sent.
    pub(super) text: Vec<u8>,
    pub(super) delivered: usize,
    /// It sends any bytes behind this many responses.
    pub(super) raw_from: Option<usize>,
    pub(super) has_ended: bool,
    /// Where the next request begins, and whether that has been noted.
    at: usize,
    is_noted: bool,
    /// The only client connection that may use it from now on.
    bound_to: Option<usize>,
}

impl Origin {
    pub(super) fn new(line: Line) -> Self {
        Self {
            line,
            begun: Vec::new(),
            whole: 0,
            replies: Vec::new(),
            text: Vec::new(),
            delivered: 0,
            raw_from: None,
            has_ended: false,
            at: 0,
            is_noted: false,
            bound_to: None,
        }
    }

    /// Composes a response to the next request, if that comes or not.
    pub(super) fn reply(&mut self, number: usize, clients: &[Client], given: &mut Given<'_>) {
        let (kind, length) = (given.byte(), usize::from(given.byte()));
        self.reply_as(number, clients, kind, length);
    }

    pub(super) fn reply_as(&mut self, number: usize, clients: &[Client], kind: u8, length: usize) {
        let length = if length < 200 { length } else { (length - 199) * 700 };
        let is_last = |reply: &Reply| reply.is_until_close;
        if self.text.len() + length > MOST_BYTES || self.replies.last().is_some_and(is_last) {
            return;
        }
        let which = self.replies.len();
        let asked = self.begun.get(which).map(|&(client, slot)| &clients[client].asked[slot]);
        let may_switch = asked.is_some_and(|asked| asked.upgrades);
        let status = match kind >> 4 & 3 {
            1 => 204,
            2 => 304,
            3 if may_switch => 101,
            _ => 200,
        };
        let is_head = asked.is_some_and(|asked| asked.method == "HEAD");
        let is_http_10 = kind & 0x80 != 0 && kind & 1 == 0 && status != 101;
        let has_body = status == 200 && !is_head;
        let framing = kind & 3;
        let mut reply = Reply {
            status,
            body: if status == 200 { body(which * 3 + number + 100, length) } else { Vec::new() },
            has_trailer: framing == 3,
            is_until_close: has_body && framing == 2,
            begin: self.text.len(),
            end: 0,
            is_solicited: false,
        };
        let mut text = String::new();
        if kind & 0x40 != 0 {
            text += "HTTP/1.1 100 Continue\r\n\r\n";
        }
        if kind & 8 != 0 {
            text += "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        }
        let version = if is_http_10 { "HTTP/1.0" } else { "HTTP/1.1" };
        text += &format!("{version} {status} OK\r\nX-Tag: {number}.{which}\r\n");
        if status == 101 {
            text += "Connection: upgrade\r\nUpgrade: websocket\r\n";
        } else if kind & 4 != 0 {
            text += "Connection: close\r\n";
        }
        match framing {
            _ if status != 200 => text += "\r\n",
            0 => text += &format!("Content-Length: {}\r\n\r\n", reply.body.len()),
            2 => text += "\r\n",
            _ => text += "Transfer-Encoding: chunked\r\n\r\n",
        }
        self.text.extend_from_slice(text.as_bytes());
        if has_body {
            match framing {
                0 | 2 => self.text.extend_from_slice(&reply.body),
                _ => {
                    let trailer = reply.has_trailer.then(|| format!("{number}.{which}"));
                    chunked(&mut self.text, &reply.body, which, trailer.as_deref());
                }
            }
        }
        reply.end = self.text.len();
        self.replies.push(reply);
    }

    /// Whether a response is composed and not needed: its request has not come.
    pub(super) fn is_ahead(&self) -> bool {
        self.replies.len() > self.begun.len()
    }

    /// Whether all its requests are answered, and truepeer sends no other one.
    pub(super) fn is_idle(&self) -> bool {
        let is_ended = self.replies.last().is_none_or(|reply| !reply.is_until_close);
        let is_answered = is_ended && self.replies.len() == self.whole && self.delivered == self.text.len();
        let is_sent_to = self.line.is_tried() || self.line.sent(|sent| sent.len() > self.at);
        self.whole > 0 && is_answered && !is_sent_to
    }

    /// Sends. `is_unseen`: truepeer may believe that nothing has come.
    pub(super) fn send(&mut self, most: usize, is_unseen: bool) {
        // truepeer has closed the connection, so nothing arrives.
        if self.line.ends().is_closed {
            return;
        }
        let to = self.text.len().min(self.delivered.saturating_add(most));
        // A request has begun as soon as truepeer has tried to send it; the first one with the connection.
        let is_begun = self.line.is_tried() || self.line.sent(|sent| sent.len() > self.at && !self.is_noted);
        let begun = (self.begun.len() + usize::from(is_begun)).max(1);
        for (which, reply) in self.replies.iter_mut().enumerate() {
            if (self.delivered..to).contains(&reply.begin) {
                reply.is_solicited = which < begun || is_unseen;
            }
        }
        self.line.send(&self.text[self.delivered..to]);
        self.delivered = to;
    }

    /// Reads what truepeer has sent.
    pub(super) fn check(&mut self, clients: &mut [Client], sharing: Sharing) {
        let line = self.line.clone();
        line.sent(|sent| while self.next(&sent[self.at..], clients, sharing) {});
    }

    /// Reads the next request. Returns whether it is whole.
    fn next(&mut self, bytes: &[u8], clients: &mut [Client], sharing: Sharing) -> bool {
        if let Some((client, slot)) = self.switched() {
            // truepeer may have refused what came before the 101.
            if self.raw_from.is_some() {
                return false;
            }
            let asked = &clients[client].asked[slot];
            let sent = &clients[client].text[asked.end..clients[client].delivered.max(asked.end)];
            assert!(sent.starts_with(bytes), "bytes were changed behind a 101");
            let in_order = self.line.ends().in_order;
            let is_whole = clients[client].has_ended && sent.len() == bytes.len();
            // A client's reset before the 101 has reached it is an orderly end for the origin.
            let is_early = clients[client].line.is_reset() && !clients[client].has_switched();
            assert!(!in_order || is_whole || is_early, "an orderly end behind a 101");
            return false;
        }
        let Some(message) = message(bytes, |head| head.framing().unwrap_or(Framing::Nothing)) else {
            return false;
        };
        let head = &message.head;
        let said = head.only("X-Forwarded-For").expect("a request names its client");
        let forwarded = head.only("Forwarded").expect("a request names its client");
        assert!(forwarded.starts_with(&format!("for={said};")), "{forwarded}");
        assert!(head.only("X-Real-IP").is_none());
        assert!(head.first.ends_with(" HTTP/1.1"), "{}", head.first);
        let of_client = |number: &usize| address(*number).to_string() == said;
        let mut number = (0..clients.len()).find(of_client).expect("a client");
        if (0..clients.len()).filter(of_client).any(|number| clients[number].is_raw()) {
            // Which request it is can't be known.
            self.raw_from.get_or_insert(0);
            self.at += if message.is_whole { message.length } else { 0 };
            return message.is_whole;
        }
        let target = head.first.split(' ').nth(1).expect("a target");
        let (client, slot) = target[1..].split_once('/').expect("a target that a client has sent");
        let slot: usize = slot.parse().expect("a target that a client has sent");
        if client != number.to_string() {
            assert!(number == 2 && client == "3", "client {said} has not sent {target}");
            number = 3;
        }
        let client = &mut clients[number];
        let asked = &mut client.asked[slot];
        assert!(!asked.is_ambiguous, "an ambiguous request was passed on");
        assert_eq!(head.first, format!("{} {target} HTTP/1.1", asked.method));
        if !std::mem::replace(&mut self.is_noted, true) {
            assert!(
                self.bound_to.is_none_or(|only| only == number),
                "a connection was authenticated by another"
            );
            if asked.binds {
                self.bound_to = Some(number);
            }
            let before = self.begun.last().map(|&(client, _)| client);
            match (before, sharing) {
                (None, _) | (_, Sharing::All) => {}
                (Some(before), Sharing::ByClient) => assert_eq!(address(before), address(number)),
                (Some(before), Sharing::ByConnection) => assert_eq!(before, number),
            }
            self.begun.push((number, slot));
            asked.reached += 1;
            let may_come = asked.reached == 1 || asked.is_idempotent() && !asked.body_reached;
            assert!(may_come, "{target} was sent twice");
        }
        asked.body_reached |= !message.body.is_empty();
        assert!(asked.body.starts_with(&message.body), "the body of {target} was changed");
        if !message.is_whole {
            return false;
        }
        assert!(asked.body.len() == message.body.len(), "a part of {target} looks whole");
        assert!(client.delivered >= asked.end, "{target} looks whole too early");
        if let Some(trailers) = &message.trailers {
            let check = format!("{number}/{slot}");
            assert_eq!(trailers.only("X-Check"), asked.has_trailer.then_some(&*check));
        }
        self.at += message.length;
        self.is_noted = false;
        self.whole += 1;
        true
    }

    /// The request to which it has answered with 101.
    fn switched(&self) -> Option<(usize, usize)> {
        let which = self.replies.iter().position(|reply| reply.status == 101)?;
        (self.replies[which].is_solicited && !self.is_noted && self.delivered >= self.replies[which].end)
            .then(|| self.begun.get(which).copied())
            .flatten()
    }
}
