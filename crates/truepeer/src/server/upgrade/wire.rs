//! Messages with descriptors, over a unix stream.
//!
//! ```text
//! length (4 bytes, little-endian; the descriptors come with them) │ JSON
//! ```

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, UCred, recvmsg, sendmsg,
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
    /// Old to new: these were all. Its descriptor is the old process's standard error.
    Offer {
        /// The old process.
        pid: u32,
        /// The names of its attachments.
        attached: Vec<String>,
    },
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
    pub(super) downstream: usize,
    pub(super) state: FlowState,
    /// Whether a second descriptor follows, for replies.
    pub(super) has_reply_socket: bool,
}

/// One end. Everything fails after the deadline, even if the other end sends or takes a byte now and then.
pub(super) struct Wire {
    stream: UnixStream,
    deadline: Instant,
}

impl Wire {
    /// `limit`: how long the first step may take.
    pub(super) fn new(stream: UnixStream, limit: Duration) -> Self {
        Self { stream, deadline: Instant::now() + limit }
    }

    /// The process at the other end, as it was when it connected.
    pub(super) fn peer(&self) -> io::Result<UCred> {
        Ok(socket_peercred(&self.stream)?)
    }

    /// The next step may take this long.
    pub(super) fn begin_step(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
    }

    /// Limits the next call to what is left.
    fn limit_call(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "it takes too long"));
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }

    /// Repeats a call that a signal interrupts: with a time-out, the kernel does not.
    fn within<T>(&self, mut call: impl FnMut(&UnixStream) -> io::Result<T>) -> io::Result<T> {
        loop {
            self.limit_call()?;
            match call(&self.stream) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    pub(super) fn send(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes();
        let mut tries = 0;
        while let Err(error) = self.within(|stream| Ok(send_with(stream, &length, descriptors)?)) {
            if error.raw_os_error() != Some(Errno::TOOMANYREFS.raw_os_error()) || tries == MOST_TRIES {
                return Err(error);
            }
            tries += 1;
            thread::sleep(IN_FLIGHT);
        }
        let mut rest = &body[..];
        while !rest.is_empty() {
            match self.within(|mut stream| stream.write(rest))? {
                0 => return Err(ErrorKind::WriteZero.into()),
                length => rest = &rest[length..],
            }
        }
        Ok(())
    }

    /// # Errors
    /// The other end has closed, is too slow, or sends something else.
    pub(super) fn receive(&mut self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let (length, descriptors) = self.receive_length()?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let (mut body, mut have) = (vec![0; length], 0);
        while have < length {
            match self.within(|mut stream| stream.read(&mut body[have..]))? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                more => have += more,
            }
        }
        Ok((serde_json::from_slice(&body)?, descriptors))
    }

    /// Descriptors come with the first bytes of a message. Those of a message that fails are closed.
    fn receive_length(&self) -> io::Result<([u8; 4], Vec<OwnedFd>)> {
        let (mut length, mut have, mut descriptors) = ([0; 4], 0, Vec::new());
        while have < length.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [IoSliceMut::new(&mut length[have..])];
            let received =
                self.within(|stream| Ok(recvmsg(stream, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC)?))?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MOST_DESCRIPTORS {
                return Err(io::Error::other("too many descriptors in one message"));
            }
            if received.bytes == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            have += received.bytes;
        }
        Ok((length, descriptors))
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        (Wire::new(one, LONG), Wire::new(other, LONG))
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
        assert_eq!(new.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_that_is_none_is_refused() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x02\0\0\0{}", b"GET "] {
            let (old, mut new) = pair();
            (&old.stream).write_all(bytes).unwrap();
            drop(old);
            new.receive().unwrap_err();
        }
    }

    /// The number of this process's descriptors of this pipe.
    fn copies(pipe: &OwnedFd) -> usize {
        let inode = |fd: &str| std::fs::metadata(format!("/proc/self/fd/{fd}")).map(|file| file.ino()).ok();
        let own = inode(&pipe.as_raw_fd().to_string());
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| own.is_some() && inode(name) == own).count()
    }

    #[test]
    fn descriptors_of_a_message_that_fails_are_closed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let before = copies(&reader);
        let many = vec![reader.as_fd(); MOST_DESCRIPTORS];
        for bytes in [&b"\x02\0\0\0{}"[..], b"\xff\xff\xff\xff", b"\x02\0", b"\x09\0\0\0\"Ready"] {
            let (old, mut new) = pair();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            sendmsg(&old.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
            drop((old, control));
            new.receive().unwrap_err();
        }
        assert_eq!(copies(&reader), before);
        drop(writer);
    }

    /// More than the receiver has room for: the kernel cuts the rest off.
    #[test]
    fn more_descriptors_than_a_message_may_have_are_refused_and_closed() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let before = copies(&reader);
        let (old, mut new) = pair();
        // One byte of the length each time.
        for byte in b"\x07\0" {
            let many = vec![reader.as_fd(); 200];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            sendmsg(&old.stream, &[IoSlice::new(&[*byte])], &mut control, SendFlags::empty()).unwrap();
        }
        let error = new.receive().unwrap_err();
        assert!(error.to_string().contains("too many descriptors"), "{error}");
        drop((old, new));
        assert_eq!(copies(&reader), before);
    }

    /// A byte now and then doesn't move the deadline.
    #[test]
    fn a_peer_that_drips_is_given_up_at_the_deadline() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut new = Wire::new(one, Duration::from_millis(150));
        let dripping = thread::spawn(move || {
            for byte in b"\xff\0\0\0".iter().chain([b' '; 100].iter()) {
                if (&other).write_all(&[*byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let error = new.receive().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        drop(new);
        dripping.join().unwrap();
    }

    #[test]
    fn a_peer_that_reads_nothing_is_given_up_at_the_deadline() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut old = Wire::new(one, Duration::from_millis(100));
        let message = Message::Failed { reason: "x".repeat(4 << 20) };
        old.send(&message, &[]).unwrap_err();
    }
}
