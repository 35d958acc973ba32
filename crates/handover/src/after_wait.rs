//! Headers that come after `--header-wait`: AWS NLB sends its header with the client's first payload. The
//! program has the connection by then, so the header can't name the client any more, and must not be data.
//!
//! ```text
//! silent in its time ─▶ guard: a filter in the kernel ─▶ handed over ─▶ AfterWait asks the kernel
//!                         drops a segment that begins                     │ bytes came: filter off
//!                         a header: its sender repeats it                 └ a drop: shut down, refused
//! ```
//! The guard knows by its sequence number which segment has the connection's first bytes: their SYN was saved
//! (TCP_SAVE_SYN). Later ones pass. A signature that is cut in two is recognised by its second part, together
//! with what follows it in every header; the first part, 11 bytes at most, has passed as data by then.
//!
//! The connection belongs to the program: a duplicate of its descriptor, held for long, would keep it open
//! when the program closes it. So the kernel is asked by the connection's ends (sock_diag), and its
//! descriptor is used for a moment, at the end.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use rustix::net::{Shutdown, shutdown, sockopt::socket_cookie};
use truepeer_policy::{HeaderError, LATE_BYTES, SenderAddr};
use truepeer_proto::{V2_SIGNATURE, Versions, begins_header};
use truepeer_sys::segments::{Instruction, attach_filter, detach_filter, filter_len, first_byte};
use truepeer_sys::sock_diag::{Arrivals, SockDiag, SocketId as TcpId};

use crate::look::{Look, Refused, is_silent};
use crate::names::ConnectionTuple;
use crate::reminder::SocketId;
use crate::rules::RunRules;

/// How often the kernel is asked.
const PERIOD: Duration = Duration::from_millis(500);
/// At most this many connections are asked about. Beyond that, the oldest keep their guard.
const MOST: usize = 1024;

/// Drops headers that come from now on. Returns whether that is possible: a filter of the program's own is
/// kept, and newer kernels demand CAP_NET_ADMIN for a filter on a TCP socket (Linux 5d39580f68e6, 2026).
pub(crate) fn guard(connection: BorrowedFd<'_>, accepted: Versions) -> bool {
    filter_len(connection) == 0
        && attach_filter(connection, &program(first_byte(connection), accepted)).is_ok()
}

/// Whether a connection has a guard.
pub fn is_guarded(connection: BorrowedFd<'_>, rules: &RunRules) -> bool {
    let length = filter_len(connection);
    length > 0 && [None, Some(0)].iter().any(|first| program(*first, rules.limits.versions).len() == length)
}

/// Whether this decision hands over a connection without a guard, although a header may still come.
pub fn is_exposed(connection: BorrowedFd<'_>, sender: SenderAddr, look: &Look, rules: &RunRules) -> bool {
    is_silent(connection, sender, look, rules) && !is_guarded(connection, rules)
}

/// Connections that were handed over with a guard. `P`: where the owner finds a connection's descriptor.
#[derive(Debug)]
pub struct AfterWait<P> {
    watched: VecDeque<Watched<P>>,
    due: Instant,
}

/// One of them.
#[derive(Debug)]
pub struct Watched<P> {
    /// Where its descriptor is, if that is known.
    pub place: Option<P>,
    id: TcpId,
    socket: SocketId,
    cookie: u64,
    sender: SenderAddr,
    arrivals: Arrivals,
    is_header: bool,
}

impl<P> Default for AfterWait<P> {
    fn default() -> Self {
        Self { watched: VecDeque::new(), due: Instant::now() }
    }
}

impl<P> AfterWait<P> {
    /// Watches a connection that has a guard; again, when it has a place. If the kernel can't be asked, the
    /// guard is all.
    pub fn watch(&mut self, connection: BorrowedFd<'_>, sender: SocketAddr, place: Option<P>) {
        let Ok(cookie) = socket_cookie(connection) else { return };
        if let Some(watched) = self.watched.iter_mut().rev().find(|watched| watched.cookie == cookie) {
            watched.place = place;
            return;
        }
        let Ok(tuple) = ConnectionTuple::of(connection, sender) else { return };
        let Ok(socket) = SocketId::of(connection) else { return };
        let id = TcpId::new(tuple.local, tuple.sender, tuple.device, cookie);
        let Ok(Some(arrivals)) = SockDiag::open().and_then(|mut kernel| kernel.arrivals_on(&id)) else {
            return;
        };
        if self.watched.is_empty() {
            self.due = Instant::now() + PERIOD;
        }
        if self.watched.len() >= MOST {
            self.watched.pop_front();
        }
        let sender = SenderAddr::new(sender);
        self.watched.push_back(Watched { place, id, socket, cookie, sender, arrivals, is_header: false });
    }

    /// When to call [`Self::turn`] next.
    pub fn limit(&self) -> Option<Duration> {
        (!self.watched.is_empty()).then(|| self.due.saturating_duration_since(Instant::now()))
    }

    /// Returns those that are decided: call [`Watched::end`] for each.
    pub fn turn(&mut self) -> Vec<Watched<P>> {
        let now = Instant::now();
        let mut decided = Vec::new();
        if self.watched.is_empty() || now < self.due {
            return decided;
        }
        self.due = now + PERIOD;
        let Ok(mut kernel) = SockDiag::open() else { return decided };
        for mut watched in core::mem::take(&mut self.watched) {
            // No answer, or no program has it open: its guard, if it still exists, keeps it.
            let Ok(Some(arrivals)) = kernel.arrivals_on(&watched.id) else { continue };
            let before = core::mem::replace(&mut watched.arrivals, arrivals);
            // TCP counts a segment before it drops one itself (a keepalive), and never sees the guard's.
            let dropped = arrivals.drops.wrapping_sub(before.drops);
            let is_open = arrivals.bytes < LATE_BYTES as u64;
            watched.is_header = is_open && dropped > arrivals.segments.wrapping_sub(before.segments);
            if watched.is_header || !is_open {
                decided.push(watched);
            } else {
                self.watched.push_back(watched);
            }
        }
        decided
    }
}

impl<P> Watched<P> {
    /// Ends a connection whose header was dropped, or removes the guard. `connection`: what is under the
    /// descriptor now, perhaps another connection. Returns why it is refused.
    pub fn end(&self, connection: Option<BorrowedFd<'_>>, rules: &RunRules) -> Option<Refused> {
        let is_ended = connection.is_some_and(|connection| self.end_here(connection));
        if self.is_header && !is_ended {
            // Another process has it. Without CAP_NET_ADMIN the kernel does not end it, and that process has
            // to be found. If it can't, the connection stays open, and its header is no data all the same.
            let ended = SockDiag::open().and_then(|mut kernel| kernel.destroy(&self.id));
            if ended.is_err() {
                let _ = self.socket.anywhere().map(|connection| self.end_here(connection.as_fd()));
            }
        }
        let waited = rules.deadline(self.sender, 0);
        let error = HeaderError::AfterWait { waited };
        self.is_header.then_some(Refused::Header { sender: self.sender, error })
    }

    /// Returns whether this is the connection.
    fn end_here(&self, connection: BorrowedFd<'_>) -> bool {
        let is_this = socket_cookie(connection) == Ok(self.cookie);
        if is_this && self.is_header {
            let _ = shutdown(connection, Shutdown::Both);
        }
        if is_this {
            // After a shutdown the kernel answers the repeated header by RST.
            detach_filter(connection);
        }
        is_this
    }
}

/// A mask of four bytes, and their value.
type Four = (u32, u32);

/// The four bytes after each signature. By them the guard recognises a signature whose first part came
/// before. Version 1: TCP4 or TCP6, UNKN(OWN). Version 2: version and command, a family and a protocol that
/// exist, a length below 2,048.
const V1_FOLLOWS: [Four; 2] = [(0xFFFF_FFFD, 0x5443_5034), (u32::MAX, 0x554E_4B4E)];
const V2_FOLLOWS: [Four; 1] = [(0xFECC_F800, 0x2000_0000)];

/// Operations of classic BPF (linux/bpf_common.h): loads of absolute and indexed words, arithmetic, jumps.
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD_AT: u16 = 0x40;
const LOAD_HALF_AT: u16 = 0x48;
const LOAD_BYTE_AT: u16 = 0x50;
const LOAD_MEMORY: u16 = 0x60;
const LOAD_LENGTH: u16 = 0x80;
const STORE: u16 = 0x02;
const TO_INDEX: u16 = 0x07;
const SUBTRACT: u16 = 0x14;
const SUBTRACT_INDEX: u16 = 0x1C;
const SHIFT_RIGHT: u16 = 0x74;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_ABOVE: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// In the filter's memory: the payload's length, and where in the stream it begins.
const LENGTH: u32 = 0;
const PLACE: u32 = 1;

fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// A few bytes.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Passes over so many instructions if the condition is false.
fn unless(code: u16, k: u32, over: u8) -> Instruction {
    Instruction { code, jt: 0, jf: over, k }
}

/// The filter. It sees a segment from its TCP header on, of IPv4 as of IPv6. `first`: the sequence number of
/// the connection's first byte. Without it, each segment is examined.
fn program(first: Option<u32>, accepted: Versions) -> Vec<Instruction> {
    let pass = op(RETURN, u32::MAX);
    let mut program = vec![
        // The data offset, in words, is the upper half of byte 12.
        op(LOAD_BYTE, 12),
        op(SHIFT_RIGHT, 2),
        op(AND, 0x3C),
        op(TO_INDEX, 0),
        op(LOAD_LENGTH, 0),
        op(SUBTRACT_INDEX, 0),
        op(STORE, LENGTH),
        unless(IF_EQUAL, 0, 1),
        pass,
    ];
    if let Some(first) = first {
        program.extend([op(LOAD_WORD, 4), op(SUBTRACT, first), op(STORE, PLACE)]);
        program.extend([unless(IF_ABOVE, number(V2_SIGNATURE.len() - 1), 1), pass]);
    }
    let signatures: [(&[u8], &[Four]); 2] = [(b"PROXY ", &V1_FOLLOWS), (&V2_SIGNATURE, &V2_FOLLOWS)];
    for (signature, follows) in signatures {
        if begins_header(signature, accepted) != Some(true) {
            continue;
        }
        program.extend(part(signature, first.is_some().then_some(0), None));
        for at in 1..signature.len() {
            let place = first.map(|_| number(at));
            for follows in follows {
                program.extend(part(&signature[at..], place, Some(*follows)));
            }
        }
    }
    program.push(pass);
    program
}

/// Drops a segment that begins with these bytes and then `follows`, at this place of the stream (anywhere if
/// there is none). Others go on to the next part.
fn part(bytes: &[u8], place: Option<u32>, follows: Option<Four>) -> Vec<Instruction> {
    let mut tests = Vec::new();
    let mut test = |load: Instruction, mask: Option<u32>, code: u16, value: u32| {
        tests.push(load);
        tests.extend(mask.map(|mask| op(AND, mask)));
        tests.push(unless(code, value, 0));
    };
    if let Some(place) = place {
        test(op(LOAD_MEMORY, PLACE), None, IF_EQUAL, place);
    }
    // A load from behind the segment's end would drop it.
    let length = bytes.len() + if follows.is_some() { 4 } else { 0 };
    test(op(LOAD_MEMORY, LENGTH), None, IF_AT_LEAST, number(length));
    let mut at = 0;
    for width in [4, 4, 4, 2, 1] {
        let Some(value) = bytes.get(at..at + width) else { continue };
        let value = value.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
        let load = [LOAD_BYTE_AT, LOAD_HALF_AT, LOAD_WORD_AT][width / 2];
        test(op(load, number(at)), None, IF_EQUAL, value);
        at += width;
    }
    if let Some((mask, value)) = follows {
        test(op(LOAD_WORD_AT, number(at)), Some(mask), IF_EQUAL, value);
    }
    tests.push(op(RETURN, 0));
    let end = tests.len();
    for (place, instruction) in tests.iter_mut().enumerate() {
        if matches!(instruction.code, IF_EQUAL | IF_AT_LEAST) {
            instruction.jf = u8::try_from(end - place - 1).unwrap_or(u8::MAX);
        }
    }
    tests
}
