//! An end of a TCP connection, as far as a hand-over depends on it: it takes and ignores segments as Linux
//! does.

use std::collections::VecDeque;
use std::net::SocketAddr;

use truepeer_testbed::packets::{ACK, FIN, PSH, RST, Segment, timestamps};

/// Times are milliseconds.
const RTO: u64 = 30;
const MOST_RTO: u64 = 1000;
const MSS: usize = 1000;
/// Bytes under way at most: there is no congestion here but loss.
const FLIGHT: u32 = 20_000;

pub(crate) fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

fn len(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("less than a sequence space")
}

pub(crate) fn end_of(segment: &Segment) -> u32 {
    segment.seq.wrapping_add(len(segment.payload.len())).wrapping_add(u32::from(segment.flags & FIN != 0))
}

/// Its timestamps: the value at the beginning, and how many milliseconds a step takes (RFC 7323: 1 to 1000).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) first: u32,
    pub(crate) step: u64,
}

pub(crate) struct Tcp {
    own: SocketAddr,
    remote: SocketAddr,
    /// Bytes that are not acknowledged; the first has the number `una`.
    out: VecDeque<u8>,
    pub(crate) una: u32,
    pub(crate) nxt: u32,
    pub(crate) is_shut: bool,
    /// Its end is acknowledged.
    is_over: bool,
    edge: u32,
    edge_said_at: u32,
    max_window: u32,
    /// The scale of the windows that it offers, and of those that it is offered.
    scale: u8,
    remote_scale: u8,
    pub(crate) rcv: u32,
    late: Vec<Segment>,
    unread: VecDeque<u8>,
    room: usize,
    told: u32,
    pub(crate) has_end: bool,
    pub(crate) is_reset: bool,
    due: Option<u64>,
    rto: u64,
    repeats: u32,
    recover: Option<u32>,
    clock: Option<Clock>,
    pub(crate) now: u64,
    /// The newest timestamp of the other end.
    recent: u32,
    /// When it has last answered a bare segment that it did not take.
    objected: u64,
}

/// What two ends agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Agreed {
    pub(crate) addresses: [SocketAddr; 2],
    pub(crate) numbers: [u32; 2],
    pub(crate) rooms: [usize; 2],
    pub(crate) scales: [u8; 2],
    pub(crate) clocks: Option<[Clock; 2]>,
}

impl Tcp {
    /// Both ends of an established connection.
    pub(crate) fn pair(agreed: Agreed) -> [Tcp; 2] {
        let Agreed { addresses, numbers, rooms, scales, clocks } = agreed;
        [0, 1].map(|place: usize| {
            let other = 1 - place;
            // The window of a SYN is not scaled.
            let window = |place: usize| len(rooms[place].min(65535));
            Tcp {
                own: addresses[place],
                remote: addresses[other],
                out: VecDeque::new(),
                una: numbers[place],
                nxt: numbers[place],
                is_shut: false,
                is_over: false,
                edge: numbers[place].wrapping_add(window(other)),
                edge_said_at: numbers[other],
                max_window: window(other),
                scale: scales[place],
                remote_scale: scales[other],
                rcv: numbers[other],
                late: Vec::new(),
                unread: VecDeque::new(),
                room: rooms[place],
                told: numbers[other].wrapping_add(window(place)),
                has_end: false,
                is_reset: false,
                due: None,
                rto: RTO,
                repeats: 0,
                recover: None,
                clock: clocks.map(|clocks| clocks[place]),
                now: 0,
                recent: clocks.map_or(0, |clocks| clocks[other].first),
                objected: 0,
            }
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.out.extend(bytes);
    }

    pub(crate) fn unacknowledged(&self) -> usize {
        self.out.len() + usize::from(self.nxt.wrapping_sub(self.una) > len(self.out.len()))
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.nxt.wrapping_sub(self.una) < len(self.out.len())
    }

    pub(crate) fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Reads; the peer is told if the window has become much wider.
    pub(crate) fn read(&mut self, most: usize, replies: &mut Vec<Segment>) -> Vec<u8> {
        let bytes: Vec<u8> = self.unread.drain(..most.min(self.unread.len())).collect();
        let offered = usize::try_from(self.told.wrapping_sub(self.rcv).cast_signed()).unwrap_or(0);
        let free = self.room.saturating_sub(self.unread.len());
        if free > offered && free - offered >= (self.room / 2).min(2 * MSS) && !self.is_reset {
            replies.push(self.bare());
        }
        bytes
    }

    /// Now and then, and whenever something was written or read.
    pub(crate) fn go_on(&mut self, now: u64, replies: &mut Vec<Segment>) {
        if self.is_reset {
            return;
        }
        while self.nxt.wrapping_sub(self.una) < FLIGHT {
            let Some(segment) = self.segment_at(self.nxt) else { break };
            replies.push(segment);
        }
        let waits = self.nxt != self.una || self.has_unsent();
        if !waits {
            self.due = None;
        } else if self.due.is_none() {
            self.due = Some(now + self.rto);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.rto = (self.rto * 2).min(MOST_RTO);
            self.due = Some(now + self.rto);
            self.recover = Some(self.nxt);
            let again = if self.nxt == self.una { None } else { self.segment_at(self.una) };
            replies.push(again.unwrap_or_else(|| self.probe()));
        }
    }

    /// A question, which its receiver answers because it does not take it.
    pub(crate) fn probe(&mut self) -> Segment {
        let seq = self.una.wrapping_sub(1);
        Segment { seq, ..self.bare() }
    }

    pub(crate) fn reset(&mut self) -> Segment {
        self.is_reset = true;
        Segment { seq: self.nxt, flags: RST | ACK, ..self.bare() }
    }

    /// The answer of a host that doesn't know the connection.
    pub(crate) fn unknown(&self, segment: &Segment) -> Option<Segment> {
        (segment.flags & RST == 0).then(|| Segment {
            seq: segment.ack,
            flags: RST,
            ..Segment::new(self.own, self.remote)
        })
    }

    fn segment_at(&mut self, seq: u32) -> Option<Segment> {
        if self.is_over {
            return None;
        }
        let at = seq.wrapping_sub(self.una) as usize;
        let room = match self.edge.wrapping_sub(seq).cast_signed() {
            // The oldest is repeated though the window has closed (__tcp_retransmit_skb()).
            ..=0 if seq == self.una && seq != self.nxt => self.nxt.wrapping_sub(seq).cast_signed(),
            room => room,
        };
        let left = self.out.len().checked_sub(at)?;
        let size = left.min(MSS).min(usize::try_from(room).unwrap_or(0));
        let has_fin = self.is_shut && size == left;
        if size == 0 && (!has_fin || room < 0) {
            return None;
        }
        let payload: Vec<u8> = self.out.iter().skip(at).take(size).copied().collect();
        let flags = ACK | if has_fin { FIN } else { 0 } | if size > 0 { PSH } else { 0 };
        let segment = Segment { seq, flags, payload, ..self.bare() };
        // A repeated segment may be longer than before.
        if is_before(self.nxt, end_of(&segment)) {
            self.nxt = end_of(&segment);
        }
        Some(segment)
    }

    /// Numbered by the window's end if it has sent more than that, and than rounding explains
    /// (tcp_acceptable_seq()).
    fn bare(&mut self) -> Segment {
        // It may have taken more than it offered: a segment that begins within the window.
        let offered = u32::try_from(self.told.wrapping_sub(self.rcv).cast_signed()).unwrap_or(0);
        let free = len(self.room.saturating_sub(self.unread.len()));
        let step = 1 << self.scale;
        // An offer is never taken back (tcp_select_window()).
        let window = if free < offered { offered.next_multiple_of(step) } else { free };
        let window = (window >> self.scale).min(65535);
        let edge = self.rcv.wrapping_add(window << self.scale);
        if is_before(self.told, edge) {
            self.told = edge;
        }
        let beyond = self.nxt.wrapping_sub(self.edge).cast_signed();
        let seq = if beyond >= 1 << self.remote_scale { self.edge } else { self.nxt };
        let window = u16::try_from(window).expect("16 bits");
        let stamp = |Clock { first, step }| {
            let value = first.wrapping_add(u32::try_from(self.now / step).expect("small"));
            timestamps(value, self.recent)
        };
        let options = self.clock.map(stamp).unwrap_or_default();
        Segment { seq, ack: self.rcv, flags: ACK, window, options, ..Segment::new(self.own, self.remote) }
    }

    /// tcp_rcv_state_process(), as far as it matters.
    pub(crate) fn on(&mut self, now: u64, segment: &Segment, replies: &mut Vec<Segment>) {
        if self.is_reset {
            replies.extend(self.unknown(segment));
            return;
        }
        // PAWS, as tcp_validate_incoming(): before everything else.
        let value = segment.timestamps().map(|(value, _)| value);
        if segment.flags & RST == 0
            && value.is_some_and(|value| self.recent.wrapping_sub(value).cast_signed() > 1)
        {
            self.object(now, segment, replies);
            return;
        }
        if is_before(end_of(segment), self.rcv) || is_before(self.told, segment.seq) {
            if segment.flags & RST == 0 {
                self.object(now, segment, replies);
            }
            return;
        }
        if segment.flags & RST != 0 {
            if segment.seq == self.rcv {
                self.is_reset = true;
            } else {
                self.object(now, segment, replies);
            }
            return;
        }
        if let Some(value) = value.filter(|_| !is_before(self.rcv, segment.seq))
            && is_before(self.recent, value)
        {
            self.recent = value;
        }
        // RFC 5961, 5.2.
        let oldest = self.una.wrapping_sub(self.max_window);
        if is_before(self.nxt, segment.ack) || is_before(segment.ack, oldest) {
            self.object(now, segment, replies);
            return;
        }
        self.on_ack(now, segment, replies);
        let has_news = end_of(segment) != segment.seq;
        if has_news {
            self.keep(segment);
            replies.push(self.bare());
        } else if segment.seq != self.rcv && is_before(segment.seq, self.rcv) {
            // The number before the expected one: a question.
            self.object(now, segment, replies);
        }
    }

    /// Not too often, lest two ends object to each other for ever (tcp_oow_rate_limited()).
    fn object(&mut self, now: u64, segment: &Segment, replies: &mut Vec<Segment>) {
        if segment.payload.is_empty() {
            if self.objected != 0 && now - self.objected < 500 {
                return;
            }
            self.objected = now;
        }
        replies.push(self.bare());
    }

    fn on_ack(&mut self, now: u64, segment: &Segment, replies: &mut Vec<Segment>) {
        let is_new = is_before(self.una, segment.ack);
        let window = u32::from(segment.window) << self.remote_scale;
        if !is_before(segment.ack, self.una) && (is_new || !is_before(segment.seq, self.edge_said_at)) {
            let edge = segment.ack.wrapping_add(window);
            if is_new || segment.seq != self.edge_said_at || is_before(self.edge, edge) {
                self.edge = edge;
                self.edge_said_at = segment.seq;
            }
            self.max_window = self.max_window.max(window);
        }
        if is_new {
            let taken = segment.ack.wrapping_sub(self.una) as usize;
            let bytes = taken.min(self.out.len());
            self.is_over |= taken > bytes;
            self.out.drain(..bytes);
            self.una = segment.ack;
            (self.rto, self.repeats) = (RTO, 0);
            self.due = (self.una != self.nxt).then(|| now + self.rto);
            if self.recover.is_some_and(|recover| !is_before(self.una, recover)) {
                self.recover = None;
            }
            if self.recover.is_some() && self.una != self.nxt {
                replies.extend(self.segment_at(self.una));
            }
        } else if segment.ack == self.una && self.una != self.nxt && segment.payload.is_empty() {
            self.repeats += 1;
            if self.repeats == 3 && self.recover.is_none() {
                self.recover = Some(self.nxt);
                replies.extend(self.segment_at(self.una));
            }
        }
    }

    fn keep(&mut self, segment: &Segment) {
        self.late.push(segment.clone());
        while let Some(place) =
            self.late.iter().position(|one| !is_before(self.rcv, one.seq) && is_before(self.rcv, end_of(one)))
        {
            let one = self.late.swap_remove(place);
            let known = (self.rcv.wrapping_sub(one.seq) as usize).min(one.payload.len());
            self.unread.extend(&one.payload[known..]);
            self.rcv = end_of(&one);
            self.has_end |= one.flags & FIN != 0;
        }
        let rcv = self.rcv;
        self.late.retain(|one| is_before(rcv, end_of(one)));
    }
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tcp { una, nxt, edge, rcv, told, is_shut, has_end, is_reset, due, rto, .. } = self;
        let (out, unread, late) = (self.out.len(), self.unread.len(), self.late.len());
        write!(
            f,
            "una {una} nxt {nxt} edge {edge} out {out} shut {is_shut}; rcv {rcv} told {told} unread {unread} late {late} end {has_end}; "
        )?;
        write!(f, "reset {is_reset} due {due:?} rto {rto}")
    }
}
