//! `truepeer connect --udp-dialect`: each datagram is sent by the supervisor, on the program's own socket, with its header.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use truepeer_handover::{Datagrams, Own, now, sends_datagrams};
use truepeer_sys::process::{read_memory, write_memory};
use truepeer_sys::seccomp::{Answer, Notification, calls};
use truepeer_sys::socket::send_datagram;

use super::reach::descriptor_for;
use super::telling::{Telling, parse_any_address};

const MSG_FASTOPEN: i32 = 0x2000_0000;
const MSG_DONTWAIT: i32 = 0x40;
/// The kernel's UIO_MAXIOV: parts of a message, and messages of a call.
const MOST: usize = 1024;
/// What a datagram can hold, and more.
const LONGEST: u64 = 65_536;
const LONGEST_ADDRESS: usize = 28;

/// struct msghdr and struct mmsghdr of a 64-bit machine.
const MSGHDR: usize = 56;
const MMSGHDR: u64 = 64;
const IOVEC: usize = 16;

/// What the program wants to send: its bytes are still in its memory.
#[derive(Debug, Default)]
struct Message {
    /// Address and length of the destination; none if the address is 0.
    name: (u64, u64),
    parts: Vec<(u64, u64)>,
    control: (u64, u64),
}

impl Message {
    /// To where the socket is connected.
    fn of(part: (u64, u64)) -> Self {
        Self { parts: vec![part], ..Self::default() }
    }
}

impl Telling {
    /// A call that sends, on whatever descriptor.
    pub(super) fn on_send(&mut self, call: &Notification) {
        let Some(socket) = descriptor_for(call, &self.notifier, &mut self.journal) else { return };
        let answer = match &self.datagrams {
            Some(datagrams) if sends_datagrams(socket.as_fd()) => {
                self.send_all(call, socket.as_fd(), datagrams)
            }
            // Programs that connect by sending are told that this is not to be had, and connect first.
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
            calls::SENDMSG => read_message(call, call.args[1]).and_then(send),
            calls::SENDMMSG => self.send_several(call, socket, datagrams),
            calls::WRITEV => match read_parts(call, call.args[1], call.args[2]) {
                // Unlike the other calls, it sends no empty datagram.
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

    /// sendmmsg(): how many were sent; an error only if none was.
    fn send_several(
        &self,
        call: &Notification,
        socket: BorrowedFd<'_>,
        datagrams: &Datagrams,
    ) -> Result<usize, Errno> {
        let wanted = usize::try_from(call.int(2).cast_unsigned()).unwrap_or(MOST).min(MOST);
        for number in 0..wanted {
            let at = call.args[1].wrapping_add(number as u64 * MMSGHDR);
            let sent =
                read_message(call, at).and_then(|message| self.send(call, socket, &message, datagrams));
            let noted = sent.and_then(|sent| {
                let sent = u32::try_from(sent).unwrap_or(u32::MAX);
                write_memory(call.thread, at.wrapping_add(MSGHDR as u64), &sent.to_ne_bytes())
            });
            match noted {
                Err(errno) if number == 0 => return Err(errno),
                Err(_) => return Ok(number),
                Ok(()) => {}
            }
        }
        Ok(wanted)
    }

    /// How many of the program's own bytes were sent.
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
        // What was read was the caller's if it still waits.
        if !self.notifier.is_waiting(call.id) {
            return Err(Errno::SRCH);
        }
        let flags = flags_of(call);
        let mut send = |header: &[u8], with: Own| {
            let own = if with == Own::Behind { own.as_slice() } else { &[] };
            send_datagram(socket, to, &[header, own].concat(), &control, flags)
        };
        let told = truepeer_handover::Message { to, control: &control, flags };
        let sent = datagrams.send(socket, &told, &self.sending, now(), &mut send);
        match sent.and_then(|sent| sent.map_or_else(|| send(&[], Own::Behind), Ok)) {
            // A program that would have waited for room is told, as of a full queue of the network device.
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

fn read_message(call: &Notification, at: u64) -> Result<Message, Errno> {
    let mut header = [0; MSGHDR];
    read_memory(call.thread, at, &mut header)?;
    let word = |place: usize| number(&header[place..place + 8]);
    let name = (word(0), word(8) & u64::from(u32::MAX));
    let parts = read_parts(call, word(16), word(24))?;
    Ok(Message { name, parts, control: (word(32), word(40)) })
}

/// struct iovec, so many of them.
fn read_parts(call: &Notification, at: u64, count: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST).ok_or(Errno::MSGSIZE)?;
    let mut parts = vec![0; count * IOVEC];
    if count > 0 {
        read_memory(call.thread, at, &mut parts)?;
    }
    Ok(parts.chunks_exact(IOVEC).map(|part| (number(&part[..8]), number(&part[8..]))).collect())
}

fn read_name(call: &Notification, (address, length): (u64, u64)) -> Result<Option<SocketAddr>, Errno> {
    if address == 0 || length == 0 {
        return Ok(None);
    }
    let mut name = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(LONGEST_ADDRESS)];
    read_memory(call.thread, address, &mut name)?;
    parse_any_address(&name).map(Some).ok_or(Errno::INVAL)
}

fn read_bytes(call: &Notification, parts: &[(u64, u64)]) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    for &(address, length) in parts {
        let before = bytes.len();
        if length > LONGEST - before as u64 {
            return Err(Errno::MSGSIZE);
        }
        bytes.resize(before + usize::try_from(length).unwrap_or_default(), 0);
        if length > 0 {
            read_memory(call.thread, address, &mut bytes[before..])?;
        }
    }
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
