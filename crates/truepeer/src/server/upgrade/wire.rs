//! Messages with descriptors, over a unix stream.
//!
//! ```text
//! length (4 bytes, little-endian; the descriptors come with them) │ JSON
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use truepeer_relay::udp::moving::FlowState;

/// The most descriptors of one message. The kernel takes 253 (SCM_MAX_FD).
pub(super) const MOST_DESCRIPTORS: usize = 240;
/// The longest message: a part of the flows, 120 of them at most.
const MOST_BYTES: usize = 4 << 20;
/// How long to wait for the receiver when too many descriptors are on their way (RLIMIT_NOFILE).
const IN_FLIGHT: Duration = Duration::from_millis(5);

const MOST_TRIES: u32 = 1000;

/// What the two processes say to each other, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Old to new, repeated: listening sockets. They are recognised by their addresses.
    Sockets,
    /// Old to new: these were all.
    Offer {
        /// The old process.
        pid: u32,
    },
        /// The names of its attachments.
        attached: Vec<String>,
    /// New to old: everything that could fail has been tried.
    Ready,
    /// Old to new, repeated: flows, with their sockets.
    Flows(Vec<FlowRecord>),
    /// Old to new: serve.
    Go,
    /// New to old: the new process serves these UDP listeners, and has these attached.
    Serving {
        /// The new process.
        pid: u32,
        udp: Vec<SocketAddr>,
        attached: Vec<String>,
    },
    /// Either: the other process goes on alone.
    Failed { reason: String },
}

/// A UDP flow.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FlowRecord {
    pub(super) listener: SocketAddr,
    pub(super) gate: usize,
    pub(super) state: FlowState,
    /// Whether a second descriptor follows, for replies.
    pub(super) has_reply_socket: bool,
}

/// One end.
pub(super) struct Wire(pub(super) UnixStream);

impl Wire {
    /// How long [`Self::receive`] may take.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(timeout))?;
        self.0.set_write_timeout(Some(timeout))
    }

    pub(super) fn send(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes();
        let mut tries = 0;
        while let Err(errno) = send_with(&self.0, &length, descriptors) {
            if errno != Errno::TOOMANYREFS || tries == MOST_TRIES {
                return Err(errno.into());
            }
            tries += 1;
            thread::sleep(IN_FLIGHT);
        }
        self.0.write_all(&body)
    }

    /// # Errors
    /// The other end has closed, is too slow, or sends something else.
    pub(super) fn receive(&mut self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let (length, descriptors) = receive_with(&self.0)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((serde_json::from_slice(&body)?, descriptors))
    }
}

fn send_with(stream: &UnixStream, length: &[u8; 4], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    // The kernel takes the four bytes as a whole.
    sendmsg(stream, &[IoSlice::new(length)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

fn receive_with(stream: &UnixStream) -> io::Result<([u8; 4], Vec<OwnedFd>)> {
    let (mut length, mut have, mut descriptors) = ([0; 4], 0, Vec::new());
    while have < length.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut length[have..])],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("descriptors were lost on the way: the limit of open files?"));
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        have += received.bytes;
    }
    Ok((length, descriptors))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        (Wire(one), Wire(other))
    }

    #[test]
    fn messages_keep_their_descriptors() {
        let (mut old, mut new) = pair();
        let files: Vec<_> = (0..MOST_DESCRIPTORS).map(|_| File::open("/dev/null").unwrap()).collect();
        let sending = thread::spawn(move || {
            let files: Vec<_> = files.iter().map(File::as_fd).collect();
            for count in [0, 1, MOST_DESCRIPTORS, 2] {
                old.send(&Message::Sockets, &files[..count]).unwrap();
            }
            old.send(&Message::Offer { pid: 7, attached: vec!["pins".to_owned()] }, &[]).unwrap();
        });
        for count in [0, 1, MOST_DESCRIPTORS, 2] {
            let (message, descriptors) = new.receive().unwrap();
            assert!(matches!(message, Message::Sockets) && descriptors.len() == count);
        }
        assert!(matches!(new.receive().unwrap(), (Message::Offer { pid: 7, .. }, _)));
        sending.join().unwrap();
        assert_eq!(new.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_that_is_none_is_refused() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x02\0\0\0{}", b"GET "] {
            let (old, mut new) = pair();
            (&old.0).write_all(bytes).unwrap();
            drop(old);
            new.receive().unwrap_err();
        }
    }
}
