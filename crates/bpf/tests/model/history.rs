//! The generated history of one connection: a sender, a link, a blind attacker, and a kernel. Steps are
//! generated from the model's state, so that they come near the limits. They are stored unchanged and can be
//! replayed.

use std::net::SocketAddr;

use truepeer_bpf::test::tcp::{Answers, Socket, Tuple};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::client;
use truepeer_testbed::packets::{Segment as Whole, timestamps};

use crate::segment::{ACK, FIN, RST, SYN, frame};
use crate::tcp::Model;

const PSH: u8 = 8;
pub(crate) const PORT: u16 = 80;

/// One step of a history.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    In(Vec<u8>),
    Out(Vec<u8>),
    Kernel(Answers),
    AnswerWasCookie,
    AnswerWasOurs,
    SocketMade,
    SocketEnded,
}

/// The valid next numbers of the sender and of this host.
pub(crate) struct Maker {
    chance: Chance,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    isn: u32,
    ours: u32,
    has_clock: bool,
    clock: u32,
    our_clock: u32,
    header: Vec<u8>,
    pub(crate) kernel: Answers,
    /// A frame whose copy is still to come.
    pub(crate) copy: Option<Vec<u8>>,
    is_cookie: bool,
}

impl Maker {
    pub(crate) fn new(seed: u64) -> Maker {
        let mut chance = Chance::new(seed);
        let v6 = chance.below(2) == 1;
        let (from, to) =
            if v6 { ("[fd77::1]:4000", "[fd77::2]:80") } else { ("10.77.0.1:4000", "10.77.0.2:80") };
        let (from, to) = (from.parse().expect("an address"), to.parse().expect("an address"));
        let near_wrap = |chance: &mut Chance| match chance.below(3) {
            0 => 0u32.wrapping_sub(number(chance) % 100),
            _ => number(chance),
        };
        let family = if chance.below(3) == 0 && !v6 { 2 } else { 10 };
        let kernel = Answers {
            now_ns: 1_000_000_000_000,
            socket: Socket::Listens,
            family,
            is_here: chance.below(30) > 0,
            cookies: [(0, 0); 2],
        };
        Maker {
            isn: near_wrap(&mut chance),
            ours: near_wrap(&mut chance),
            has_clock: chance.below(2) == 1,
            clock: near_wrap(&mut chance),
            our_clock: near_wrap(&mut chance),
            header: header(&mut chance),
            is_cookie: chance.below(6) == 0,
            copy: None,
            chance,
            from,
            to,
            kernel,
        }
    }

    pub(crate) fn tuple(&self) -> Tuple {
        let bytes = |address: SocketAddr| match address.ip() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(ip) => ip.octets(),
        };
        Tuple {
            sender: bytes(self.from),
            local: bytes(self.to),
            sender_port: self.from.port(),
            local_port: self.to.port(),
        }
    }

    /// The next step, depending on the state of the connection.
    pub(crate) fn next(&mut self, model: &Model) -> Step {
        if let Some(copy) = self.copy.take()
            && self.chance.below(8) > 0
        {
            return Step::In(copy);
        }
        let begins = model.pending.is_none() && model.flow.is_none();
        let is_answered = model.pending.as_ref().is_some_and(|pending| pending.answer.is_some());
        match self.chance.below(20) {
            0 | 1 => self.kernel_changes(model),
            2 => self.time_passes(),
            3 => Step::Out(self.our_segment(model)),
            4 if self.chance.below(3) == 0 => Step::SocketEnded,
            5..=8 if model.pending.as_ref().is_some_and(|pending| pending.flow.is_some()) => {
                self.kernel.socket = Socket::Open;
                Step::SocketMade
            }
            _ if model.flow.is_some() && self.kernel.socket != Socket::Open && self.chance.below(4) > 0 => {
                self.kernel.socket = Socket::Open;
                Step::Kernel(self.kernel)
            }
            _ if begins && self.chance.below(4) > 0 => Step::In(self.syn()),
            _ if !begins && !is_answered && model.flow.is_none() && self.chance.below(5) > 0 => {
                if self.is_cookie || self.kernel.socket == Socket::HalfOpen {
                    Step::Out(self.syn_ack(model))
                } else {
                    self.kernel.socket = Socket::HalfOpen;
                    Step::Kernel(self.kernel)
                }
            }
            9 if is_answered && !self.is_cookie && self.chance.below(2) == 0 => Step::AnswerWasOurs,
            10 if is_answered && !self.is_cookie && self.chance.below(4) == 0 => {
                self.kernel.socket = Socket::Listens; // it has given the handshake up
                Step::Kernel(self.kernel)
            }
            _ if is_answered && self.is_cookie && self.chance.below(3) == 0 => self.cookie(model),
            _ => Step::In(self.segment(model)),
        }
    }

    fn kernel_changes(&mut self, model: &Model) -> Step {
        if self.chance.below(4) == 0 {
            self.kernel.socket =
                self.chance.one_of(&[Socket::None, Socket::Listens, Socket::HalfOpen, Socket::Open]);
        } else if model.pending.is_some() && !self.is_cookie {
            self.kernel.socket = Socket::HalfOpen;
        }
        Step::Kernel(self.kernel)
    }

    fn time_passes(&mut self) -> Step {
        let most = self.chance.one_of(&[1_000_000u64, 500_000_000, 2_000_000_000, 6_000_000_000]);
        self.kernel.now_ns += self.chance.next() % most;
        self.clock = self.clock.wrapping_add(number(&mut self.chance) % 1000);
        self.our_clock = self.our_clock.wrapping_add(number(&mut self.chance) % 1000);
        Step::Kernel(self.kernel)
    }

    /// A cookie was sent for the SYN, and sometimes for another one.
    fn cookie(&mut self, model: &Model) -> Step {
        let Some(pending) = &model.pending else { return Step::Kernel(self.kernel) };
        if pending.answer.is_some_and(|answer| !answer.is_cookie) && self.chance.below(2) == 0 {
            return Step::AnswerWasCookie;
        }
        let start = self.isn.wrapping_add(1).wrapping_add(pending.guess);
        if start == 0 {
            // find_socket() gets 0 where no cookie is requested.
            return Step::Kernel(self.kernel);
        }
        self.kernel.socket = Socket::Listens;
        self.kernel.cookies[0] = (start, self.ours.wrapping_add(1));
        if self.chance.below(3) == 0 {
            // The SYN with which the sender starts again.
            self.isn = number(&mut self.chance);
            let start = self.isn.wrapping_add(1).wrapping_add(pending.guess);
            self.ours = number(&mut self.chance);
            self.kernel.cookies[1] = (start, self.ours.wrapping_add(1));
        }
        Step::Kernel(self.kernel)
    }

    fn blank(&self) -> Whole {
        Whole::new(self.from, self.to)
    }

    fn syn(&mut self) -> Vec<u8> {
        if self.chance.below(5) == 0 {
            self.isn = number(&mut self.chance);
        }
        if self.chance.below(4) == 0 {
            self.header = header(&mut self.chance);
        }
        let options = if self.has_clock { timestamps(self.clock, 0) } else { vec![2, 4, 5, 0xb4] };
        self.spoil(Whole { seq: self.isn, flags: SYN, options, ..self.blank() }, 12)
    }

    fn syn_ack(&mut self, model: &Model) -> Vec<u8> {
        let guess = model.pending.as_ref().map_or(0, |pending| pending.guess);
        let wrong = if self.chance.below(12) == 0 { 1 } else { 0 };
        let ack = self.isn.wrapping_add(1).wrapping_add(guess).wrapping_add(wrong);
        let options = if self.has_clock { timestamps(self.our_clock, self.clock) } else { Vec::new() };
        let answer =
            Whole { seq: self.ours, ack, flags: SYN | ACK, options, ..Whole::new(self.to, self.from) };
        frame(&answer.packet())
    }

    fn our_segment(&mut self, model: &Model) -> Vec<u8> {
        if self.chance.below(3) == 0 {
            return self.syn_ack(model);
        }
        let mut options = if self.has_clock { timestamps(self.our_clock, self.clock) } else { Vec::new() };
        if self.chance.below(3) == 0 {
            let blocks = 1 + self.chance.below(3);
            options.extend([1, 1, 5, u8::try_from(2 + 8 * blocks).expect("short")]);
            for _ in 0..2 * blocks {
                options.extend(number(&mut self.chance).to_be_bytes());
            }
        }
        let flags = self.chance.one_of(&[ACK, ACK, ACK | PSH, ACK | FIN, RST, RST | ACK]);
        let len = self.chance.below(20);
        let payload = self.chance.bytes(len);
        let (seq, ack) = (number(&mut self.chance), number(&mut self.chance));
        frame(&Whole { seq, ack, flags, options, payload, ..Whole::new(self.to, self.from) }.packet())
    }

    /// From the sender, or from an attacker that imitates it.
    fn segment(&mut self, model: &Model) -> Vec<u8> {
        let have = model.pending.as_ref().map_or(0, |pending| pending.have) as usize;
        let all = [self.header.as_slice(), b"data behind the header"].concat();
        let from = match self.chance.below(6) {
            0 => 0,
            1 => self.chance.below(all.len()),
            _ => have.min(all.len() - 1),
        };
        let to = match self.chance.below(4) {
            0 => from,
            1 => (from + 1).min(all.len()),
            2 => from + self.chance.below(all.len() - from + 1),
            _ => all.len(),
        };
        let mut payload = all[from..to].to_vec();
        if self.chance.below(12) == 0 && !payload.is_empty() {
            let place = self.chance.below(payload.len());
            payload[place] = self.chance.next().to_le_bytes()[0];
        }
        let start = self.isn.wrapping_add(1);
        let near = number(&mut self.chance) % 200;
        let seq = match self.chance.below(16) {
            0 => number(&mut self.chance),
            1 => start.wrapping_add(near).wrapping_sub(100),
            2 => self.isn,
            _ => start.wrapping_add(u32::try_from(from).expect("short")),
        };
        let ack = match self.chance.below(14) {
            0 => number(&mut self.chance),
            1 => self.ours,
            _ => self.ours.wrapping_add(1),
        };
        let flags = match self.chance.below(12) {
            0 => self.chance.next().to_le_bytes()[0] & 0x3f,
            1 => self.chance.one_of(&[RST, RST | ACK, SYN, SYN | ACK, FIN | ACK, 0, FIN, SYN | FIN]),
            2 => FIN | ACK | PSH,
            _ => ACK | PSH,
        };
        let mut options = Vec::new();
        if self.has_clock && self.chance.below(15) > 0 {
            let value = match self.chance.below(10) {
                0 => number(&mut self.chance),
                1 => self.clock.wrapping_sub(near),
                _ => self.clock,
            };
            let echo = match self.chance.below(12) {
                0 => number(&mut self.chance),
                1 => 0,
                _ => self.our_clock,
            };
            options = timestamps(value, echo);
        }
        match self.chance.below(40) {
            0 => options.extend([1, 1, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            1 => options.extend([1, 1, 1, 1]),
            2 => options.extend([0, 8, 10, 0]),
            3 => options.extend([250, 4, 19, 8]),
            _ => {}
        }
        self.spoil(Whole { seq, ack, flags, options, payload, ..self.blank() }, 12)
    }

    /// One of this many is damaged.
    fn spoil(&mut self, segment: Whole, one_of: usize) -> Vec<u8> {
        let packet = segment.packet();
        if self.chance.below(one_of) > 0 {
            return frame(&packet);
        }
        // Not the addresses and ports: the segment would belong to another connection.
        let at = packet.payload_at();
        let len = packet.bytes().len();
        let place = match self.chance.below(4) {
            0 if !packet.is_ipv6() => self.chance.one_of(&[1, 4, 8, 10]),
            1 => return frame(&packet.cut(len - 1 - self.chance.below(len - at))),
            _ => at + 4 + self.chance.below(len - at - 4),
        };
        frame(&packet.flip(place, 1 << self.chance.below(8)))
    }
}

fn number(chance: &mut Chance) -> u32 {
    u32::try_from(chance.next() >> 32).unwrap_or_default()
}

/// A header, or something similar.
fn header(chance: &mut Chance) -> Vec<u8> {
    let (v4, v6) =
        (["203.0.113.1:1001", "127.0.0.1:9", "198.51.100.7:65535"], ["[2001:db8::1]:1", "[::1]:2"]);
    let made = match chance.below(12) {
        0 | 1 => client::v1(chance.one_of(&v4), "192.0.2.1:443"),
        2 => client::v1(chance.one_of(&v6), "[2001:db8::2]:443"),
        3 => client::v2(chance.one_of(&v6), "[2001:db8::2]:443"),
        4 => {
            let len = chance.below(200);
            let value = chance.bytes(len);
            client::v2_with_tlvs(chance.one_of(&v4), "192.0.2.1:443", &[(0xE0, &value)])
        }
        5 => Ok(client::v2_local()),
        6 => Ok(client::v1_unknown()),
        7 => client::v2_raw(0x21, 0x31, &[7; 216]),
        8 => client::v2_raw(0x21, 0x11, &[0; 600]),
        9 => Ok(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        _ => client::v2(chance.one_of(&v4), "192.0.2.1:443"),
    };
    made.expect("addresses of one family")
}
