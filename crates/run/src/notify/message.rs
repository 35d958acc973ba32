//! The structures of sendmsg(2), recvmsg(2) and their kin in a program's memory, in the layout of a 64-bit
//! machine.

use std::net::SocketAddr;

use rustix::io::Errno;
use truepeer_sys::process::{read_memory, write_memory};
use truepeer_sys::seccomp::Notification;

use super::caller::parse_any_address;

/// The kernel's UIO_MAXIOV: the most parts of a message, and the most messages of a call.
pub(super) const MOST: usize = 1024;
/// At least the largest datagram.
pub(super) const LONGEST: u64 = 65_536;
const LONGEST_ADDRESS: usize = 28;

/// struct msghdr and struct mmsghdr, and the offsets of the fields that the kernel writes.
const MSGHDR: usize = 56;
const NAME_LENGTH: u64 = 8;
const CONTROL_LENGTH: u64 = 40;
const FLAGS: u64 = 48;
const MMSGHDR: u64 = 64;
const IOVEC: usize = 16;

/// A message. Its bytes are still in the program's memory.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// Address and length of the name; no name if the address is 0.
    pub(super) name: (u64, u64),
    pub(super) parts: Vec<(u64, u64)>,
    pub(super) control: (u64, u64),
}

impl Message {
    /// A message of one part, without a name.
    pub(super) fn of(part: (u64, u64)) -> Self {
        Self { parts: vec![part], ..Self::default() }
    }

    /// struct msghdr.
    ///
    /// # Errors
    /// EFAULT, EMSGSIZE for too many parts.
    pub(super) fn read(call: &Notification, at: u64) -> Result<Self, Errno> {
        let mut header = [0; MSGHDR];
        read_memory(call.thread, at, &mut header)?;
        let word = |place: usize| number(&header[place..place + 8]);
        let name = (word(0), word(8) & u64::from(u32::MAX));
        let parts = read_parts(call, word(16), word(24))?;
        Ok(Self { name, parts, control: (word(32), word(40)) })
    }

    /// The room in its parts, capped at the largest datagram.
    pub(super) fn room(&self) -> usize {
        let room = self.parts.iter().fold(0_u64, |room, (_, length)| room.saturating_add(*length));
        usize::try_from(room.min(LONGEST)).unwrap_or_default()
    }
}

/// The fields of struct msghdr that the kernel writes after a receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    /// Present if the caller asked for it.
    pub(super) name_length: Option<u32>,
    pub(super) control_length: u64,
    pub(super) flags: i32,
}

impl Outcome {
    /// # Errors
    /// EFAULT.
    pub(super) fn write(self, call: &Notification, at: u64) -> Result<(), Errno> {
        if let Some(length) = self.name_length {
            write_memory(call.thread, at.wrapping_add(NAME_LENGTH), &length.to_ne_bytes())?;
        }
        write_memory(call.thread, at.wrapping_add(FLAGS), &self.flags.to_ne_bytes())?;
        write_memory(call.thread, at.wrapping_add(CONTROL_LENGTH), &self.control_length.to_ne_bytes())
    }
}

/// The addresses of the struct mmsghdr array of sendmmsg() and recvmmsg().
pub(super) fn nth_message(call: &Notification, number: usize) -> u64 {
    call.args[1].wrapping_add(number as u64 * MMSGHDR)
}

/// The number of messages in a call of sendmmsg() or recvmmsg().
pub(super) fn count_of_messages(call: &Notification) -> usize {
    usize::try_from(call.int(2).cast_unsigned()).unwrap_or(MOST).min(MOST)
}

/// The field msg_len of a struct mmsghdr, behind its msghdr.
///
/// # Errors
/// EFAULT.
pub(super) fn write_message_length(call: &Notification, at: u64, length: usize) -> Result<(), Errno> {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    write_memory(call.thread, at.wrapping_add(MSGHDR as u64), &length.to_ne_bytes())
}

/// Reads `count` structs iovec.
///
/// # Errors
/// EFAULT, EMSGSIZE for too many.
pub(super) fn read_parts(call: &Notification, at: u64, count: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST).ok_or(Errno::MSGSIZE)?;
    let mut parts = vec![0; count * IOVEC];
    if count > 0 {
        read_memory(call.thread, at, &mut parts)?;
    }
    Ok(parts.chunks_exact(IOVEC).map(|part| (number(&part[..8]), number(&part[8..]))).collect())
}

/// # Errors
/// EFAULT; EINVAL if it is not an address.
pub(super) fn read_name(
    call: &Notification,
    (address, length): (u64, u64),
) -> Result<Option<SocketAddr>, Errno> {
    if address == 0 || length == 0 {
        return Ok(None);
    }
    let mut name = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(LONGEST_ADDRESS)];
    read_memory(call.thread, address, &mut name)?;
    parse_any_address(&name).map(Some).ok_or(Errno::INVAL)
}

/// # Errors
/// EFAULT; EMSGSIZE for more than a datagram holds.
pub(super) fn read_bytes(call: &Notification, parts: &[(u64, u64)]) -> Result<Vec<u8>, Errno> {
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

/// Fills one part after the other, and drops the rest.
///
/// # Errors
/// EFAULT.
pub(super) fn write_bytes(call: &Notification, parts: &[(u64, u64)], bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    for &(address, length) in parts {
        let room = usize::try_from(length).unwrap_or(usize::MAX);
        let (now, later) = rest.split_at(room.min(rest.len()));
        if !now.is_empty() {
            write_memory(call.thread, address, now)?;
        }
        rest = later;
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
