//! `truepeer connect --udp-dialect spp`: the supervisor receives answers on the program's own socket, removes
//! the header that they carry back, and gives them to the program.
//!
//! ```text
//! recvfrom() ─▶ of a UDP socket? ──no──▶ the kernel goes on
//!                 │
//!                 └── received, without waiting ─┬── a datagram: header off, into the program's memory, answered
//!                                                └── none: EAGAIN, or the call waits, watched, until there is one
//! ```
//! Nothing is dropped: a datagram without the header goes to the program unchanged. So poll() and epoll
//! report the socket correctly. A waiting call ends by a signal and by SO_RCVTIMEO, as in the kernel.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_cookie, socket_timeout};
use truepeer_handover::{CARRIED_BYTES, sends_datagrams};
use truepeer_sys::datagram::{ReceivedMessage, receive_datagram};
use truepeer_sys::process::{read_memory, write_memory};
use truepeer_sys::seccomp::{Answer, Notification, calls};

use super::caller::{parse_any_address, write_name};
use super::interrupt::ended;
use super::message::{
    LONGEST, Message, Outcome, count_of_messages, nth_message, read_parts, write_bytes, write_message_length,
};
use super::reach::descriptor_for;
use super::receivers::WaitingReceive;
use super::telling::Telling;

const MSG_TRUNC: i32 = 0x20;
const MSG_DONTWAIT: i32 = 0x40;
const MSG_ERRQUEUE: i32 = 0x2000;
const MSG_WAITFORONE: i32 = 0x1_0000;

impl Telling {
    /// A call that receives, on any descriptor.
    pub(super) fn on_receive(&mut self, call: Notification) {
        let Some(socket) = descriptor_for(&call, &self.notifier, &mut self.journal) else { return };
        if !sends_datagrams(socket.as_fd()) || takes_nothing(&call) {
            return self.answer_about(socket, &call, Answer::GoOn);
        }
        let until = match time_limit(&call) {
            Ok(limit) => limit.and_then(|limit| Instant::now().checked_add(limit)),
            Err(errno) => return self.answer_about(socket, &call, Answer::Fail(errno)),
        };
        let mut waiting = WaitingReceive { call, socket, done: 0, limit: None, deadline: None, until };
        match self.receive_for(&mut waiting) {
            Some(answer) => self.answer_about(waiting.socket, &call, answer),
            None => self.let_wait(waiting),
        }
    }

    /// Edge-triggered: a condition that persists, such as an unread error queue, must not cause a busy loop.
    fn let_wait(&mut self, mut waiting: WaitingReceive) {
        let cookie = socket_cookie(&waiting.socket).unwrap_or_default();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if let Err(errno) = self.watch.add(waiting.socket.as_fd(), cookie, flags) {
            return self.answer_about(waiting.socket, &waiting.call, Answer::Fail(errno));
        }
        waiting.limit = socket_timeout(&waiting.socket, Timeout::Recv).ok().flatten();
        waiting.begin_to_wait(Instant::now());
        self.receiving.0.entry(cookie).or_default().push_back(waiting);
    }

    /// A socket with waiting calls has become readable.
    pub(super) fn on_readable(&mut self, cookie: u64) {
        self.go_through(cookie, |this, waiting| this.receive_for(waiting));
    }

    /// Ends the waiting of calls that were killed, timed out, or have a signal pending.
    pub(super) fn look_after_receiving(&mut self, now: Instant) {
        let cookies: Vec<u64> = self.receiving.0.keys().copied().collect();
        for cookie in cookies {
            self.go_through(cookie, |this, waiting| {
                let answer = ended(&this.notifier, &waiting.call, waiting.deadline, Errno::AGAIN, now)?;
                Some(if waiting.done > 0 { this.so_many(waiting) } else { answer })
            });
        }
    }

    /// Answers the calls that can be answered. A killed call needs no answer.
    fn go_through(&mut self, cookie: u64, answer: impl Fn(&Self, &mut WaitingReceive) -> Option<Answer>) {
        let Some(all) = self.receiving.0.remove(&cookie) else { return };
        let mut left = VecDeque::with_capacity(all.len());
        for mut waiting in all {
            let answer = if self.notifier.is_waiting(waiting.call.id) {
                answer(self, &mut waiting)
            } else {
                Some(Answer::GoOn)
            };
            match answer {
                Some(answer) => {
                    self.watch.remove(waiting.socket.as_fd());
                    self.answer_about(waiting.socket, &waiting.call, answer);
                }
                None => left.push_back(waiting),
            }
        }
        if !left.is_empty() {
            self.receiving.0.insert(cookie, left);
        }
    }

    /// Receives what a call asks for. `None` if it must wait.
    fn receive_for(&self, waiting: &mut WaitingReceive) -> Option<Answer> {
        if waiting.call.call == calls::RECVMMSG {
            return self.receive_several(waiting);
        }
        let (call, socket) = (&waiting.call, waiting.socket.as_fd());
        let received = wanted(call).and_then(|message| {
            let header = (call.call == calls::RECVMSG).then_some(call.args[1]);
            self.receive(call, socket, &message, header)
        });
        match received {
            Ok(length) => Some(value(length)),
            Err(Errno::AGAIN) if waiting.may_wait() => is_shut(socket).then_some(Answer::Value(0)),
            Err(errno) => Some(Answer::Fail(errno)),
        }
    }

    /// recvmmsg(): returns the number received. It fails only if none was received.
    fn receive_several(&self, waiting: &mut WaitingReceive) -> Option<Answer> {
        while waiting.done < count_of_messages(&waiting.call) {
            let (call, socket) = (&waiting.call, waiting.socket.as_fd());
            let at = nth_message(call, waiting.done);
            let received = Message::read(call, at)
                .and_then(|message| self.receive(call, socket, &message, Some(at)))
                .and_then(|length| write_message_length(call, at, length));
            match received {
                Ok(()) => waiting.done += 1,
                Err(Errno::AGAIN) if waiting.may_wait() && !is_shut(socket) => return None,
                Err(errno) if waiting.done == 0 => return Some(Answer::Fail(errno)),
                Err(_) => break,
            }
            let now = Instant::now();
            if waiting.until.is_some_and(|until| until <= now) {
                break;
            }
            waiting.begin_to_wait(now);
        }
        Some(self.so_many(waiting))
    }

    /// Answers recvmmsg() and stores the rest of its time-out.
    fn so_many(&self, waiting: &WaitingReceive) -> Answer {
        let WaitingReceive { call, done, until, .. } = waiting;
        if let Some(until) = until.filter(|_| *done > 0 && self.notifier.is_waiting(call.id)) {
            let left = until.saturating_duration_since(Instant::now());
            let bytes = [left.as_secs().to_ne_bytes(), u64::from(left.subsec_nanos()).to_ne_bytes()].concat();
            if let Err(errno) = write_memory(call.thread, call.args[4], &bytes) {
                return Answer::Fail(errno);
            }
        }
        value(*done)
    }

    /// Receives one datagram into the program's memory and returns the result of recvmsg(2). `header` is the
    /// address of its struct msghdr, if any.
    fn receive(
        &self,
        call: &Notification,
        socket: BorrowedFd<'_>,
        message: &Message,
        header: Option<u64>,
    ) -> Result<usize, Errno> {
        if header.is_some() && message.name.1 > i32::MAX.cast_unsigned().into() {
            return Err(Errno::INVAL);
        }
        let control_room = usize::try_from(message.control.1.min(LONGEST)).unwrap_or_default();
        let flags = flags_of(call) & !MSG_WAITFORONE;
        let mut received = receive_datagram(socket, CARRIED_BYTES + message.room(), control_room, flags)?;
        let length = self.take_header_off(socket, &mut received, message.room(), flags);
        // The memory belongs to the caller only if its call still waits.
        if !self.notifier.is_waiting(call.id) {
            return Err(Errno::SRCH);
        }
        write_bytes(call, &message.parts, &received.bytes)?;
        match header {
            Some(at) => write_rest(call, at, message, &received)?,
            None if message.name.0 != 0 => {
                write_name(&self.notifier, call, message.name.into(), &received.name)?;
            }
            None => {}
        }
        Ok(length)
    }

    /// Removes the header and truncates to the program's buffer. Returns the length to report.
    fn take_header_off(
        &self,
        socket: BorrowedFd<'_>,
        received: &mut ReceivedMessage,
        room: usize,
        flags: i32,
    ) -> usize {
        let from = parse_any_address(&received.name);
        let is_ours = received.bytes.get(..CARRIED_BYTES).is_some_and(|start| {
            let datagrams = self.datagrams.as_ref();
            datagrams.is_some_and(|datagrams| datagrams.carries_ours(socket, from, start, &self.sending))
        });
        if is_ours {
            received.bytes.drain(..CARRIED_BYTES);
            return received.length - CARRIED_BYTES;
        }
        if received.bytes.len() > room {
            received.bytes.truncate(room);
            received.flags |= MSG_TRUNC;
        }
        if flags & MSG_TRUNC == 0 { received.bytes.len() } else { received.length }
    }
}

impl WaitingReceive {
    fn begin_to_wait(&mut self, now: Instant) {
        self.deadline = self.limit.and_then(|limit| now.checked_add(limit));
    }

    fn may_wait(&self) -> bool {
        let flags = flags_of(&self.call);
        let has_enough = flags & MSG_WAITFORONE != 0 && self.done > 0;
        !has_enough
            && flags & (MSG_DONTWAIT | MSG_ERRQUEUE) == 0
            && !fcntl_getfl(&self.socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }
}

/// read() of nothing takes no datagram, unlike recv(). The kernel also reports invalid arguments.
fn takes_nothing(call: &Notification) -> bool {
    match call.call {
        calls::READ => call.args[2] == 0,
        calls::READV => read_parts(call, call.args[1], call.args[2])
            .map_or(true, |parts| parts.iter().all(|(_, length)| *length == 0)),
        _ => false,
    }
}

/// The buffer of the call.
fn wanted(call: &Notification) -> Result<Message, Errno> {
    match call.call {
        calls::RECVMSG => Message::read(call, call.args[1]),
        calls::READV => {
            let parts = read_parts(call, call.args[1], call.args[2])?;
            Ok(Message { parts, ..Message::default() })
        }
        // The second address is that of the name's length.
        calls::RECVFROM => {
            Ok(Message { name: (call.args[4], call.args[5]), ..Message::of((call.args[1], call.args[2])) })
        }
        _ => Ok(Message::of((call.args[1], call.args[2]))),
    }
}

/// What recvmsg(2) writes beside the datagram.
fn write_rest(
    call: &Notification,
    at: u64,
    message: &Message,
    received: &ReceivedMessage,
) -> Result<(), Errno> {
    let (name, control) = (message.name, message.control);
    if name.0 != 0 {
        write_bytes(call, &[name], &received.name)?;
    }
    write_bytes(call, &[control], &received.control)?;
    let name_length = u32::try_from(received.name.len()).ok().filter(|_| name.0 != 0);
    let control_length = received.control.len() as u64;
    Outcome { name_length, control_length, flags: received.flags }.write(call, at)
}

/// The time-out of recvmmsg(), a struct timespec.
fn time_limit(call: &Notification) -> Result<Option<Duration>, Errno> {
    if call.call != calls::RECVMMSG || call.args[4] == 0 {
        return Ok(None);
    }
    let (mut seconds, mut nanoseconds) = ([0; 8], [0; 8]);
    read_memory(call.thread, call.args[4], &mut seconds)?;
    read_memory(call.thread, call.args[4].wrapping_add(8), &mut nanoseconds)?;
    let seconds = u64::try_from(i64::from_ne_bytes(seconds)).map_err(|_| Errno::INVAL)?;
    let nanoseconds = u32::try_from(i64::from_ne_bytes(nanoseconds)).map_err(|_| Errno::INVAL)?;
    if nanoseconds >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    Ok(Some(Duration::new(seconds, nanoseconds)))
}

/// After shutdown(SHUT_RD), a call that would wait returns 0.
fn is_shut(socket: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut about = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut about, Some(&at_once)).is_ok() && about[0].revents().contains(PollFlags::RDHUP)
}

fn flags_of(call: &Notification) -> i32 {
    match call.call {
        calls::RECVFROM | calls::RECVMMSG => call.int(3),
        calls::RECVMSG => call.int(2),
        _ => 0,
    }
}

fn value(count: usize) -> Answer {
    Answer::Value(i64::try_from(count).unwrap_or(i64::MAX))
}
