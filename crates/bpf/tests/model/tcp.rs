//! The TCP side of attach as a state machine: its inputs are segments and the kernel's answers, its outputs
//! are their fates. It has no packets, clock or kernel. The rules are those of docs/internals/attach.md: only
//! a segment that the kernel's socket would accept may teach anything.
//!
//! ```text
//!          SYN                 SYN-ACK                 header whole            socket made
//!  nothing ───▶ Pending, alone ───────▶ Pending, answered ──────────▶ with a flow ─────────▶ Flow ───▶ Ended (delta only)
//!                 │ counts for nothing    │ parts: `have` grows       │ validated again                socket ended
//! ```

mod pending;

use std::collections::BTreeMap;

use truepeer_bpf::test::tcp::{Answers, Flow, Pending, Socket, SynAnswer};

use self::pending::say_where;
use crate::segment::{ACK, FIN, RST, SYN, Segment};

const AF_INET: u32 = 2;

/// What is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) is_optional: bool,
    pub(crate) header_max: usize,
    pub(crate) header_timeout_ns: u64,
    pub(crate) header_wait_ns: u64,
}

/// The fate of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Drop,
    /// It passes, with its sequence number (in) or acknowledgements (out) shifted by this much.
    Pass {
        by: u32,
    },
    /// The same, and the request socket must ignore the echo of its timestamp.
    PassWithoutEcho {
        by: u32,
    },
    /// It becomes the ACK that ends the handshake, with this many replayed bytes, and perhaps a copy
    /// of it comes in again.
    LastAck {
        seq: u32,
        is_echo_blank: bool,
        replay: ([u8; 12], usize),
        is_copied: bool,
    },
    /// It is answered with an ACK of these numbers, and dropped.
    SayWhere {
        seq: u32,
        ack: u32,
    },
    /// It becomes a RST for the kernel, and another is sent to the sender.
    /// `shifted_back`: so much is subtracted from the number that the other acknowledges, on its way out.
    Refuse {
        kernel_seq: u32,
        shifted_back: u32,
    },
    /// Outgoing: the acknowledgement of a part is shifted by this much, and echoes this timestamp.
    Acknowledge {
        by: u32,
        echo: Option<u32>,
    },
    /// Outgoing: the SYN-ACK becomes a RST.
    GiveUp {
        by: u32,
    },
}

/// One connection, and what is remembered of its sender.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    rules: Rules,
    pub(crate) pending: Option<Pending>,
    /// The header bytes that a pending connection has received.
    start: Vec<u8>,
    pub(crate) flow: Option<Flow>,
    pub(crate) ended: Option<Flow>,
    pub(crate) guess: Option<u32>,
    pub(crate) counters: BTreeMap<&'static str, u64>,
}

const UNTOUCHED: Fate = Fate::Pass { by: 0 };

impl Model {
    pub(crate) fn new(rules: Rules) -> Model {
        Model {
            rules,
            pending: None,
            start: Vec::new(),
            flow: None,
            ended: None,
            guess: None,
            counters: BTreeMap::new(),
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    fn drop(&mut self, reason: &'static str) -> Fate {
        self.count(reason);
        Fate::Drop
    }

    pub(crate) fn comes_in(&mut self, segment: &Segment, kernel: &Answers) -> Fate {
        let is_syn = segment.flags & (SYN | ACK) == SYN;
        if let Some(mut flow) = self.flow {
            let is_left_behind = is_syn && matches!(kernel.socket, Socket::None | Socket::Listens);
            if !is_left_behind {
                let fate = self.validate_late(segment, &mut flow, kernel.socket != Socket::None);
                self.flow = Some(flow);
                return fate.unwrap_or(Fate::Pass { by: flow.delta.cast_unsigned() });
            }
            self.flow = None;
        }
        if is_syn {
            return self.on_syn(segment, kernel);
        }
        if let Some(pending) = self.pending.clone()
            && let Some(answer) = pending.answer
        {
            return self.on_pending(segment, kernel, pending, answer);
        }
        match self.ended {
            Some(flow) => Fate::Pass { by: flow.delta.cast_unsigned() },
            None => self.on_stranger(segment, kernel),
        }
    }

    /// The first bytes of a silent sender: a header ends the connection. `None`: the segment goes on. A flow
    /// that `has_socket` has sent what the segment acknowledges.
    fn validate_late(&mut self, segment: &Segment, flow: &mut Flow, has_socket: bool) -> Option<Fate> {
        let [first, state] = flow.late?;
        if segment.flags & (SYN | RST | ACK) != ACK {
            return None;
        }
        let (passed, was_v2) = (state & 15, state & 16 != 0);
        let known = first.wrapping_add(passed).wrapping_sub(segment.seq);
        if known.cast_signed() < 0 && !segment.payload.is_empty() {
            return Some(self.drop("early_segments"));
        }
        let bytes = segment.payload.get(known as usize..).filter(|bytes| !bytes.is_empty())?;
        if !has_socket {
            return Some(self.drop("not_taken"));
        }
        if !segment.is_intact {
            return Some(self.drop("refused_damaged"));
        }
        let is_v2 = if passed == 0 { bytes[0] == b'\r' } else { was_v2 };
        let signature: &[u8] = if is_v2 { b"\r\n\r\n\0\r\nQUIT\n" } else { b"PROXY " };
        let rest = &signature[passed as usize..];
        if bytes.iter().zip(rest).any(|(byte, expected)| byte != expected) {
            flow.late = None;
            return None;
        }
        if bytes.len() < rest.len() {
            let more = u32::try_from(bytes.len()).expect("less than a signature");
            flow.late = Some([first, (passed + more) | (u32::from(is_v2) << 4)]);
            return None;
        }
        self.count("refused_after_wait");
        let kernel_seq = first.wrapping_add(passed).wrapping_add(flow.delta.cast_unsigned());
        Some(Fate::Refuse { kernel_seq, shifted_back: flow.delta.cast_unsigned() })
    }

    fn on_syn(&mut self, segment: &Segment, kernel: &Answers) -> Fate {
        let Some(pending) = self.pending.clone() else { return self.on_new_syn(segment, kernel) };
        if kernel.socket == Socket::Open && pending.flow.is_some() {
            return self.drop("not_taken");
        }
        let is_cookie = pending.answer.is_some_and(|answer| answer.is_cookie);
        let is_young = kernel.now_ns - pending.born_ns < self.rules.header_timeout_ns;
        let is_pending = match kernel.socket {
            Socket::HalfOpen => true,
            Socket::Listens => {
                (is_cookie && is_young)
                    || (pending.is_proved && self.why_not_again(&pending, kernel).is_none())
            }
            _ => false,
        };
        if is_pending {
            return self.on_pending_syn(segment, &pending, is_cookie, kernel);
        }
        self.pending = None;
        self.on_new_syn(segment, kernel)
    }

    /// It changes nothing: anybody could send it.
    fn on_pending_syn(
        &mut self,
        segment: &Segment,
        pending: &Pending,
        is_cookie: bool,
        kernel: &Answers,
    ) -> Fate {
        if segment.flags & (FIN | RST) != 0 {
            return self.drop("not_taken");
        }
        // RFC 5961, as an open socket would.
        if kernel.socket == Socket::Listens && pending.is_proved {
            self.count("not_taken");
            return if segment.is_intact { say_where(pending) } else { Fate::Drop };
        }
        if segment.seq != pending.isn && !is_cookie {
            self.count("not_taken");
            if !segment.payload.is_empty() {
                return Fate::Drop;
            }
            let before_its_window = pending.isn.wrapping_add(pending.guess).wrapping_sub(1);
            return Fate::Pass { by: before_its_window.wrapping_sub(segment.seq) };
        }
        if !segment.payload.is_empty() {
            return self.drop("fastopen_declined");
        }
        if segment.is_signed {
            return self.drop("refused_signed");
        }
        Fate::Pass { by: pending.guess }
    }

    fn on_new_syn(&mut self, segment: &Segment, kernel: &Answers) -> Fate {
        if !kernel.is_here || kernel.socket == Socket::None {
            self.count("no_listener");
            self.ended = None;
            return UNTOUCHED;
        }
        if segment.flags & (FIN | RST) != 0 {
            return self.drop("not_taken");
        }
        if !segment.is_intact {
            return self.drop("refused_damaged");
        }
        if !segment.payload.is_empty() {
            return self.drop("fastopen_declined");
        }
        if segment.is_signed {
            return self.drop("refused_signed");
        }
        let plain = if self.rules.is_optional { 0 } else { 16 + if segment.is_ipv6 { 36 } else { 12 } };
        let guess = self.guess.unwrap_or(plain);
        self.start.clear();
        self.pending = Some(Pending {
            born_ns: kernel.now_ns,
            isn: segment.seq,
            guess,
            have: 0,
            ts_recent: segment.timestamps.map_or(0, |(value, _)| value),
            answer: None,
            is_proved: false,
            flow: None,
            replay: Vec::new(),
        });
        self.count("connections");
        Fate::Pass { by: guess }
    }

    fn on_stranger(&mut self, segment: &Segment, kernel: &Answers) -> Fate {
        if segment.flags & RST != 0 {
            return UNTOUCHED;
        }
        let is_half = match kernel.socket {
            Socket::HalfOpen => true,
            Socket::Listens => kernel.cookies.contains(&(segment.seq, segment.ack)) && segment.ack != 0,
            _ => false,
        };
        if !is_half {
            return UNTOUCHED;
        }
        if segment.flags & ACK == 0 {
            return self.drop("not_taken");
        }
        if !segment.is_intact {
            return self.drop("refused_damaged");
        }
        self.count("refused_stray");
        Fate::Refuse { kernel_seq: segment.seq, shifted_back: 0 }
    }

    /// A segment from this host to the sender. `by` is subtracted from acknowledgements.
    pub(crate) fn goes_out(&mut self, segment: &Segment, kernel: &Answers) -> Fate {
        if segment.flags & ACK == 0 {
            return UNTOUCHED;
        }
        if let Some(flow) = self.flow {
            return Fate::Pass { by: flow.delta.cast_unsigned() };
        }
        if let Some(pending) = &mut self.pending {
            if segment.flags & SYN != 0 && pending.flow.is_none() {
                return self.on_syn_ack(segment, kernel);
            }
            if let Some(answer) = &mut pending.answer {
                if let (Some((value, _)), Some(tsvals)) = (segment.timestamps, &mut answer.tsvals) {
                    tsvals[2] = value;
                }
                let newest = (pending.ts_recent != 0).then_some(pending.ts_recent);
                return Fate::Acknowledge {
                    by: pending.guess.wrapping_sub(pending.have),
                    echo: segment.timestamps.and(newest),
                };
            }
        }
        Fate::Pass { by: self.ended.map_or(0, |flow| flow.delta.cast_unsigned()) }
    }

    fn on_syn_ack(&mut self, segment: &Segment, kernel: &Answers) -> Fate {
        let Some(pending) = &mut self.pending else { return UNTOUCHED };
        let guess = pending.guess;
        if segment.ack != pending.isn.wrapping_add(1).wrapping_add(guess) {
            return UNTOUCHED;
        }
        if kernel.now_ns - pending.born_ns >= self.rules.header_timeout_ns {
            self.pending = None;
            self.count("refused_timeout");
            return Fate::GiveUp { by: guess };
        }
        let before = pending.answer.and_then(|answer| answer.tsvals);
        let tsvals = match segment.timestamps {
            Some((value, _)) => Some([
                if pending.answer.is_some() { before.map_or(0, |tsvals| tsvals[0]) } else { value },
                value,
                value,
            ]),
            None => before,
        };
        pending.answer = Some(SynAnswer { isn: segment.seq, is_cookie: false, is_ours: false, tsvals });
        Fate::Pass { by: guess }
    }

    /// The test makes the SYN-ACK the answer of a socket of the very port.
    pub(crate) fn answer_was_ours(&mut self) {
        if let Some(Pending { answer: Some(answer), .. }) = &mut self.pending {
            answer.is_ours = true;
        }
    }

    /// The test makes the SYN-ACK a cookie.
    pub(crate) fn answer_was_a_cookie(&mut self) {
        if let Some(Pending { answer: Some(answer), is_proved, .. }) = &mut self.pending {
            *is_proved = false;
            answer.is_cookie = true;
            if let Some(tsvals) = &mut answer.tsvals {
                tsvals[0] = tsvals[1];
            }
        }
    }

    pub(crate) fn socket_made(&mut self) {
        let Some(Pending { flow: Some(flow), have, .. }) = self.pending else { return };
        self.flow = Some(flow);
        if flow.is_named {
            self.guess = Some(have);
        }
        self.ended = None;
        self.pending = None;
    }

    pub(crate) fn socket_ended(&mut self) {
        if let Some(flow) = self.flow.take()
            && flow.delta != 0
        {
            self.ended = Some(Flow { delta: flow.delta, ..Flow::default() });
        }
    }
}
