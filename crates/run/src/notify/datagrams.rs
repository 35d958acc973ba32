//! `truepeer connect --udp-dialect`: the supervisor sends each datagram with its header, on the program's own
//! socket.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use truepeer_handover::{Datagrams, Own, now, sends_datagrams};
use truepeer_sys::datagram::send_datagram;
use truepeer_sys::seccomp::{Answer, Notification, calls};

use super::message::{
    Message, count_of_messages, nth_message, read_bytes, read_name, read_parts, write_message_length,
};
use super::reach::descriptor_for;
use super::telling::Telling;

const MSG_FASTOPEN: i32 = 0x2000_0000;
const MSG_DONTWAIT: i32 = 0x40;

impl Telling {
    /// A call that sends, on any descriptor.
    pub(super) fn on_send(&mut self, call: &Notification) {
        let Some(socket) = descriptor_for(call, &self.notifier, &mut self.journal) else { return };
        let answer = match &self.datagrams {
            Some(datagrams) if sends_datagrams(socket.as_fd()) => {
                self.send_all(call, socket.as_fd(), datagrams)
            }
            // Fail MSG_FASTOPEN with EOPNOTSUPP: the program then connects first, and the header goes there.
            _ if flags_of(call) & MSG_FASTOPEN != 0 => Answer::Fail(Errno::OPNOTSUPP),
            _ => Answer::GoOn,
        };
        drop(socket);
        self.answer(call, answer);
    }

    fn send_all(&self, call: &Notification, socket: BorrowedFd<'_>, datagrams: &Datagrams) -> Answer {
        let send = |message: Message| self.send(call, socket, &message, datagrams);
        let sent = match call.call {
            calls::SENDTO => {
                let name = (call.args[4], u64::from(call.int(5).cast_unsigned()));
                send(Message { name, ..Message::of((call.args[1], call.args[2])) })
            }
            calls::SENDMSG => Message::read(call, call.args[1]).and_then(send),
            calls::SENDMMSG => self.send_several(call, socket, datagrams),
            calls::WRITEV => match read_parts(call, call.args[1], call.args[2]) {
                // Unlike the other calls, write() of nothing sends no empty datagram.
                Ok(parts) if parts.iter().all(|(_, length)| *length == 0) => Ok(0),
                Ok(parts) => send(Message { parts, ..Message::default() }),
                Err(errno) => Err(errno),
            },
            _ => send(Message::of((call.args[1], call.args[2]))),
        };
        match sent {
            Ok(count) => Answer::Value(i64::try_from(count).unwrap_or(i64::MAX)),
            Err(errno) => Answer::Fail(errno),
        }
    }

    /// sendmmsg(): returns the number sent. It fails only if none was sent.
    fn send_several(
        &self,
        call: &Notification,
        socket: BorrowedFd<'_>,
        datagrams: &Datagrams,
    ) -> Result<usize, Errno> {
        let wanted = count_of_messages(call);
        for number in 0..wanted {
            let at = nth_message(call, number);
            let sent =
                Message::read(call, at).and_then(|message| self.send(call, socket, &message, datagrams));
            let noted = sent.and_then(|sent| write_message_length(call, at, sent));
            match noted {
                Err(errno) if number == 0 => return Err(errno),
                Err(_) => return Ok(number),
                Ok(()) => {}
            }
        }
        Ok(wanted)
    }

    /// The number of the program's own bytes that were sent.
    fn send(
        &self,
        call: &Notification,
        socket: BorrowedFd<'_>,
        message: &Message,
        datagrams: &Datagrams,
    ) -> Result<usize, Errno> {
        let to = read_name(call, message.name)?;
        let control = read_bytes(call, &[message.control])?;
        let own = read_bytes(call, &message.parts)?;
        // The bytes belong to the caller only if its call still waits.
        if !self.notifier.is_waiting(call.id) {
            return Err(Errno::SRCH);
        }
        let flags = flags_of(call);
        let mut send = |header: &[u8], with: Own| {
            let own = if with == Own::Behind { own.as_slice() } else { &[] };
            send_datagram(socket, to, &[header, own].concat(), &control, flags)
        };
        let told = truepeer_handover::SendRequest { to, control: &control, flags };
        let sent = datagrams.send(socket, &told, &self.sending, now(), &mut send);
        match sent.and_then(|sent| sent.map_or_else(|| send(&[], Own::Behind), Ok)) {
            // A call that would have waited for buffer space gets ENOBUFS, as from a full queue of the
            // network device.
            Err(Errno::AGAIN) if !may_hear_again(call, socket) => Err(Errno::NOBUFS),
            sent => sent,
        }
    }
}

fn flags_of(call: &Notification) -> i32 {
    match call.call {
        calls::SENDTO | calls::SENDMMSG => call.int(3),
        calls::SENDMSG => call.int(2),
        _ => 0,
    }
}

fn may_hear_again(call: &Notification, socket: BorrowedFd<'_>) -> bool {
    flags_of(call) & MSG_DONTWAIT != 0
        || fcntl_getfl(socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}
