//! Segments of a handshake whose SYN has been answered: what they teach, and when the header is whole.

use truepeer_bpf::test::tcp::{Answers, Flow, Pending, Socket, SynAnswer};

use super::{AF_INET, Fate, Model};
use crate::header::{self, Start};
use crate::segment::{ACK, FIN, RST, SYN, Segment};

impl Model {
    pub(super) fn on_pending(
        &mut self,
        segment: &Segment,
        kernel: &Answers,
        mut pending: Pending,
        answer: SynAnswer,
    ) -> Fate {
        if segment.flags & RST != 0 {
            return self.on_rst(segment, &pending, answer);
        }
        if segment.flags & SYN != 0 || !is_acceptable(segment, &pending, answer) {
            return self.drop("not_taken");
        }
        if let Some(flow) = pending.flow {
            return self.on_established(segment, kernel, pending, answer, flow);
        }
        // A cookie proves which SYN it answers: perhaps another than the first.
        if !pending.is_proved && (!answer.is_cookie || answers_cookie(segment, &pending, kernel)) {
            if answer.is_cookie {
                pending.isn = segment.seq.wrapping_sub(1);
                pending.answer = Some(SynAnswer { isn: segment.ack.wrapping_sub(1), ..answer });
            }
            pending.is_proved = true;
            self.pending = Some(pending.clone());
        }
        let answer = pending.answer.unwrap_or(answer);
        if segment.payload.is_empty() && segment.flags & FIN == 0 {
            return self.on_bare_ack(segment, kernel, &pending, answer);
        }
        self.on_data(segment, kernel, pending, answer)
    }

    /// RFC 5961: only a number that the sender knows ends anything.
    fn on_rst(&mut self, segment: &Segment, pending: &Pending, answer: SynAnswer) -> Fate {
        let offset = offset(segment, pending);
        let is_told = offset == 0 || offset == pending.have;
        let is_ack_wrong = segment.flags & ACK != 0 && segment.ack != answer.isn.wrapping_add(1);
        if !is_told || segment.flags & SYN != 0 || is_ack_wrong {
            return self.drop("not_taken");
        }
        if !segment.is_intact {
            return self.drop("refused_damaged");
        }
        self.pending = None;
        Fate::Pass { by: pending.guess.wrapping_sub(offset) }
    }

    fn on_bare_ack(
        &mut self,
        segment: &Segment,
        kernel: &Answers,
        pending: &Pending,
        answer: SynAnswer,
    ) -> Fate {
        let is_silent = pending.have == 0
            && offset(segment, pending) == 0
            && kernel.now_ns - pending.born_ns >= self.rules.header_wait_ns;
        if is_silent
            && self.rules.is_optional
            && segment.is_intact
            && (!answer.is_cookie || answers_cookie(segment, pending, kernel))
        {
            let late = Some([pending.isn.wrapping_add(1), 0]);
            return self.go_on_without(segment, kernel, pending, answer, (&[], late));
        }
        if segment.is_intact {
            self.note_clock(segment, pending.have, answer);
        }
        self.drop("acks_held")
    }

    fn on_data(&mut self, segment: &Segment, kernel: &Answers, pending: Pending, answer: SynAnswer) -> Fate {
        let is_end = segment.flags & FIN != 0;
        let known = pending.have.wrapping_sub(offset(segment, &pending));
        if known.cast_signed() < 0 {
            return self.drop("early_segments");
        }
        let known = known as usize;
        if known > segment.payload.len() || (known == segment.payload.len() && !is_end) {
            let is_given_up =
                kernel.socket == Socket::Listens && self.why_not_again(&pending, kernel).is_none();
            return match is_given_up {
                true if segment.is_intact => say_where(&pending),
                true => self.drop("refused_damaged"),
                false => Fate::Pass { by: pending.guess.wrapping_sub(pending.have) },
            };
        }
        if answer.is_cookie && (offset(segment, &pending) != 0 || !answers_cookie(segment, &pending, kernel))
        {
            return self.drop("not_taken");
        }
        if !segment.is_intact {
            return self.drop("refused_damaged");
        }
        self.note_clock(segment, pending.have, answer);
        if known == segment.payload.len() {
            return if pending.have == 0 && self.rules.is_optional {
                self.go_on_without(segment, kernel, &pending, answer, (&[], None))
            } else {
                self.refuse(&pending, "refused_no_header")
            };
        }
        let all = [self.start.as_slice(), &segment.payload[known..]].concat();
        match header::read(&all) {
            Start::NotProxy if self.rules.is_optional => {
                let replay = self.start.clone();
                self.go_on_without(segment, kernel, &pending, answer, (&replay, None))
            }
            Start::NotProxy => self.refuse(&pending, "refused_no_header"),
            Start::Malformed => self.refuse(&pending, "refused_malformed"),
            Start::Needs(len) | Start::Whole { len, .. } if len > self.rules.header_max => {
                self.refuse(&pending, "refused_too_long")
            }
            Start::Needs(_) => self.on_part(kernel, &pending, all, is_end),
            Start::Whole { len, .. } if len > all.len() => self.on_part(kernel, &pending, all, is_end),
            Start::Whole { len, client, is_v1 } => {
                let Ok(flow) = name(client, len, &pending, kernel) else {
                    let reason = name(client, len, &pending, kernel).expect_err("as just now");
                    return self.refuse(&pending, reason);
                };
                if let Some(reason) = self.revive(segment, &pending, kernel) {
                    return self.refuse(&pending, reason);
                }
                self.count(match client {
                    None => "named_itself",
                    Some(_) if flow.client_version == 0 => "client_not_showable",
                    Some(_) => {
                        if is_v1 {
                            "header_v1"
                        } else {
                            "header_v2"
                        }
                    }
                });
                if client.is_none() || flow.client_version == 0 {
                    self.count(if is_v1 { "header_v1" } else { "header_v2" });
                }
                self.establish(&flow, len);
                // The bytes behind the header are new to the kernel, so it creates the socket with this
                // segment.
                let is_new = pending.have == 0 && (all.len() > len || is_end);
                let is_first = answer.tsvals.is_none_or(|tsvals| tsvals[0] == tsvals[1]);
                if is_new && is_first && !answer.is_cookie && kernel.socket == Socket::HalfOpen {
                    return Fate::Pass { by: flow.delta.cast_unsigned() };
                }
                last_ack(segment, &pending, answer, &[], true)
            }
        }
    }

    fn on_part(&mut self, kernel: &Answers, pending: &Pending, all: Vec<u8>, is_end: bool) -> Fate {
        if is_end {
            return self.refuse(pending, "refused_no_header");
        }
        let is_cookie = pending.answer.is_some_and(|answer| answer.is_cookie);
        if kernel.socket == Socket::Listens && !is_cookie {
            return match self.why_not_again(pending, kernel) {
                Some(reason) => self.refuse(pending, reason),
                None => self.drop("early_segments"),
            };
        }
        if kernel.socket != Socket::HalfOpen {
            return self.refuse(pending, "refused_split_under_syn_cookies");
        }
        self.count("header_split");
        let have = u32::try_from(all.len()).expect("less than the longest header");
        self.start = all;
        if let Some(pending) = &mut self.pending {
            pending.have = have;
        }
        Fate::Pass { by: pending.guess.wrapping_sub(have) }
    }

    fn on_established(
        &mut self,
        segment: &Segment,
        kernel: &Answers,
        mut pending: Pending,
        answer: SynAnswer,
        mut flow: Flow,
    ) -> Fate {
        let fate = match self.validate_late(segment, &mut flow, true) {
            Some(Fate::Refuse { .. }) => {
                let kernel_seq = pending.isn.wrapping_add(1).wrapping_add(pending.guess);
                Some(Fate::Refuse { kernel_seq, shifted_back: 0 })
            }
            other => other,
        };
        pending.flow = Some(flow);
        let is_refused = matches!(fate, Some(Fate::Refuse { .. }));
        self.pending = (!is_refused).then(|| pending.clone());
        if let Some(fate) = fate {
            return fate;
        }
        let is_given_up = kernel.socket == Socket::Listens && self.why_not_again(&pending, kernel).is_none();
        if (answer.is_cookie && is_start_of_cookie(segment, &pending, kernel))
            || is_given_up
            || !pending.replay.is_empty()
        {
            if !segment.is_intact {
                return self.drop("refused_damaged");
            }
            return last_ack(segment, &pending, answer, &pending.replay, false);
        }
        let begins = !segment.payload.is_empty() && offset(segment, &pending) == 0 && pending.have > 0;
        let mut delta = flow.delta;
        if begins
            && segment.is_intact
            && let Start::Whole { len, client, .. } = header::read(&segment.payload)
            && len <= segment.payload.len()
            && let Ok(again) = name(client, len, &pending, kernel)
        {
            delta = again.delta;
            self.pending =
                Some(Pending { have: u32::try_from(len).expect("short"), flow: Some(again), ..pending });
        }
        let by = delta.cast_unsigned();
        let is_late = |(tsvals, (_, echo)): ([u32; 3], (u32, u32))| {
            echo != 0 && echo.wrapping_sub(tsvals[0]) > tsvals[1].wrapping_sub(tsvals[0])
        };
        let has_late_echo = answer.tsvals.zip(segment.timestamps).is_some_and(is_late);
        if kernel.socket == Socket::HalfOpen && !answer.is_cookie && has_late_echo {
            return Fate::PassWithoutEcho { by };
        }
        Fate::Pass { by }
    }

    /// Why a handshake that the kernel has given up does not go on.
    pub(super) fn why_not_again(&self, pending: &Pending, kernel: &Answers) -> Option<&'static str> {
        let can = pending.answer.is_some_and(|answer| answer.is_ours && !answer.is_cookie);
        let is_late = kernel.now_ns - pending.born_ns >= self.rules.header_timeout_ns;
        match (can, is_late) {
            (false, _) => Some("refused_redirected"),
            (true, true) => Some("refused_timeout"),
            (true, false) => None,
        }
    }

    /// Goes on from our own memory, if the kernel has none.
    fn revive(&mut self, segment: &Segment, pending: &Pending, kernel: &Answers) -> Option<&'static str> {
        if kernel.socket != Socket::Listens || is_start_of_cookie(segment, pending, kernel) {
            return None;
        }
        let refusal = self.why_not_again(pending, kernel);
        if refusal.is_none() {
            self.count("begun_again");
        }
        refusal
    }

    /// The bytes were acknowledged as a header's start, and are none. Our own ACK gives them to the kernel;
    /// the rest follows.
    fn go_on_without(
        &mut self,
        segment: &Segment,
        kernel: &Answers,
        pending: &Pending,
        answer: SynAnswer,
        (replay, late): (&[u8], Option<[u32; 2]>),
    ) -> Fate {
        if let Some(reason) = self.revive(segment, pending, kernel) {
            return self.refuse(pending, reason);
        }
        let flow = Flow { delta: pending.guess.cast_signed(), late, ..Flow::default() };
        self.establish(&flow, 0);
        if let Some(pending) = &mut self.pending {
            pending.replay = replay.to_vec();
        }
        self.count("header_absent");
        if replay.is_empty()
            && (kernel.socket != Socket::Listens || is_start_of_cookie(segment, pending, kernel))
        {
            return Fate::Pass { by: pending.guess };
        }
        last_ack(segment, pending, answer, replay, true)
    }

    fn establish(&mut self, flow: &Flow, len: usize) {
        self.count(if flow.delta == 0 { "guessed_right" } else { "translated" });
        if let Some(pending) = &mut self.pending {
            pending.have = u32::try_from(len).expect("less than the longest header");
            pending.flow = Some(*flow);
        }
    }

    fn refuse(&mut self, pending: &Pending, reason: &'static str) -> Fate {
        self.count(reason);
        self.pending = None;
        Fate::Refuse { kernel_seq: pending.isn.wrapping_add(1).wrapping_add(pending.guess), shifted_back: 0 }
    }

    /// RFC 7323: the newest timestamp of segments in order.
    fn note_clock(&mut self, segment: &Segment, have: u32, answer: SynAnswer) {
        let Some(pending) = &mut self.pending else { return };
        let is_in_order = offset(segment, pending).wrapping_sub(have).cast_signed() <= 0;
        if let (Some((value, _)), Some(_)) = (segment.timestamps, answer.tsvals)
            && value != 0
            && is_in_order
        {
            pending.ts_recent = value;
        }
    }
}

fn offset(segment: &Segment, pending: &Pending) -> u32 {
    segment.seq.wrapping_sub(pending.isn.wrapping_add(1))
}

/// `tcp_check_req`: the acknowledgement, PAWS, and the echo.
fn is_acceptable(segment: &Segment, pending: &Pending, answer: SynAnswer) -> bool {
    if segment.flags & ACK == 0 || segment.is_signed {
        return false;
    }
    if segment.ack != answer.isn.wrapping_add(1) && !answer.is_cookie {
        return false;
    }
    let (Some((value, echo)), Some([first, _, newest])) = (segment.timestamps, answer.tsvals) else {
        return true;
    };
    if answer.is_cookie {
        return true;
    }
    if pending.ts_recent != 0 && pending.ts_recent.wrapping_sub(value).cast_signed() > 0 {
        return false;
    }
    echo == 0 || echo.wrapping_sub(first) <= newest.wrapping_sub(first)
}

/// The kernel's view: the number is shifted by the same amount as the SYN's.
fn answers_cookie(segment: &Segment, pending: &Pending, kernel: &Answers) -> bool {
    let seen = (segment.seq.wrapping_add(pending.guess), segment.ack);
    kernel.socket == Socket::Listens && segment.ack != 0 && kernel.cookies.contains(&seen)
}

/// The cookie belongs to the start of the header, wherever this segment starts.
fn is_start_of_cookie(segment: &Segment, pending: &Pending, kernel: &Answers) -> bool {
    let seen = (pending.isn.wrapping_add(1).wrapping_add(pending.guess), segment.ack);
    kernel.socket == Socket::Listens && segment.ack != 0 && kernel.cookies.contains(&seen)
}

pub(super) fn say_where(pending: &Pending) -> Fate {
    let ours = pending.answer.map_or(0, |answer| answer.isn);
    Fate::SayWhere { seq: ours.wrapping_add(1), ack: pending.isn.wrapping_add(1).wrapping_add(pending.guess) }
}

fn last_ack(segment: &Segment, pending: &Pending, answer: SynAnswer, replay: &[u8], is_copied: bool) -> Fate {
    let mut bytes = [0; 12];
    bytes[..replay.len()].copy_from_slice(replay);
    Fate::LastAck {
        seq: pending.isn.wrapping_add(1).wrapping_add(pending.guess),
        is_echo_blank: segment.timestamps.is_some() && answer.tsvals.is_some() && !answer.is_cookie,
        replay: (bytes, replay.len()),
        is_copied,
    }
}

/// The flow of a complete header's client, or the reason to refuse it.
fn name(
    client: Option<header::Client>,
    len: usize,
    pending: &Pending,
    kernel: &Answers,
) -> Result<Flow, &'static str> {
    let len = u32::try_from(len).expect("less than the longest header");
    let mut flow = Flow { delta: pending.guess.wrapping_sub(len).cast_signed(), ..Flow::default() };
    if let Some(client) = client {
        flow.client = client.address;
        flow.client_port = client.port;
        flow.client_version = client.version;
        flow.is_named = true;
        if client.is_special {
            return Err("refused_claim");
        }
    }
    if !matches!(kernel.socket, Socket::HalfOpen | Socket::Listens) {
        return Err("refused_redirected");
    }
    if flow.client_version == 6 && kernel.family == AF_INET {
        flow.client_version = 0;
    }
    Ok(flow)
}
