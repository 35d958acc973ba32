//! Connections whose header is complete but came late: a queue that all processes of the program can add to
//! and take from.
//!
//! It is a pair of unix sockets. The kernel keeps the connections even if a process dies. It needs no lock,
//! and its memory is bounded. [`truepeer_handover::WakeUp::ring`] announces queued connections to the
//! application.

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use truepeer_handover::ListenerAddr;

use crate::movable::{Movable, alone, is_inode};
use crate::{ours, say};

/// Text: two socket addresses of at most 58 characters, and two numbers.
const MESSAGE_BYTES: usize = 160;

/// Both ends: each process can add and take.
#[derive(Debug)]
pub(crate) struct Ready {
    into: Movable,
    out: Movable,
}

/// A connection to hand over.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) socket: OwnedFd,
    pub(crate) listener: ListenerAddr,
    /// The address that the program sees.
    pub(crate) peer: SocketAddr,
    /// The length of its message, as [`Ready::bytes`] counts.
    pub(crate) bytes: usize,
}

impl Ready {
    pub(crate) fn create() -> Result<Self, Errno> {
        let [into, out] = pair()?;
        Ok(Self { into: Movable::holding(into), out: Movable::holding(out) })
    }

    /// Returns the shared queue, if these descriptors still are sockets with these inodes.
    pub(crate) fn inherited(into: (RawFd, u64), out: (RawFd, u64)) -> Option<Self> {
        let is_still = |(fd, inode)| ours::inspect(fd, |fd| is_inode(fd, inode).then_some(()));
        is_still(into)?;
        is_still(out)?;
        let adopt = |(fd, _)| Movable::holding(ours::adopt(fd));
        Some(Self { into: adopt(into), out: adopt(out) })
    }

    /// The two descriptors and their inodes.
    pub(crate) fn ends(&self) -> [(RawFd, u64); 2] {
        [&self.into, &self.out].map(|end| (end.number(), end.inode()))
    }

    /// If one of its ends has this number, moves it to another.
    ///
    /// # Errors
    /// Those of [`Movable::move_from`].
    pub(crate) fn move_from(&self, taken: RawFd) -> Result<bool, Errno> {
        Ok(self.into.move_from(taken)? || self.out.move_from(taken)?)
    }

    /// Call it in a forked child.
    pub(crate) fn on_fork(&self) {
        self.into.on_fork();
        self.out.on_fork();
    }

    /// Adds a connection; the caller's descriptor stays open. If the program has closed the queue with its
    /// own system calls, it is created anew, for this process alone.
    ///
    /// # Errors
    /// `EAGAIN` if the queue is full.
    pub(crate) fn put(
        &self,
        socket: BorrowedFd<'_>,
        listener: ListenerAddr,
        peer: SocketAddr,
    ) -> Result<(), Errno> {
        match self.try_put(socket, listener, peer) {
            Err(error) if is_lost(error) => alone(|| {
                // Another thread may have created it.
                match self.try_put(socket, listener, peer) {
                    Err(error) if is_lost(error) => {
                        let [into, out] = pair()?;
                        self.out.hold(out);
                        self.into.hold(into);
                        self.try_put(socket, listener, peer)
                    }
                    done => done,
                }
            }),
            done => done,
        }
    }

    /// Puts a connection back for another listener. Returns whether that succeeded: otherwise it is closed.
    pub(crate) fn put_back(&self, entry: &Entry) -> bool {
        let put = self.put(entry.socket.as_fd(), entry.listener, entry.peer);
        if let Err(error) = put {
            say::complaint(
                "late_lost",
                Some(entry.peer.ip()),
                format_args!("a connection from {} is closed before it was accepted: {error}", entry.peer),
            );
        }
        put.is_ok()
    }

    fn try_put(&self, socket: BorrowedFd<'_>, listener: ListenerAddr, peer: SocketAddr) -> Result<(), Errno> {
        let message = format!("{listener} {peer}");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [socket];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let bytes = [IoSlice::new(message.as_bytes())];
        self.into.with(|into| sendmsg(into, &bytes, &mut control, flags).map(drop))
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// The length of all messages in the queue.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = self.out.with(|out| rustix::io::ioctl_fionread(out)).unwrap_or_default();
        usize::try_from(bytes).unwrap_or_default()
    }

    /// Takes a connection, if there is one, and a free descriptor for it: without one the kernel would close
    /// the connection.
    pub(crate) fn take(&self) -> Option<Entry> {
        drop(self.out.with(|out| fcntl_dupfd_cloexec(out, 3)).ok()?);
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut room = [IoSliceMut::new(&mut bytes)];
        let received = self.out.with(|out| recvmsg(out, &mut room, &mut control, flags)).ok()?;
        let socket = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })?;
        let text = core::str::from_utf8(bytes.get(..received.bytes)?).ok()?;
        let (listener, peer) = text.split_once(' ')?;
        let (listener, peer) = (listener.parse().ok()?, peer.parse().ok()?);
        Some(Entry { socket, listener, peer, bytes: received.bytes })
    }
}

/// Whether one of the ends is closed.
fn is_lost(error: Errno) -> bool {
    matches!(error, Errno::BADF | Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED | Errno::NOTCONN)
}

fn pair() -> Result<[OwnedFd; 2], Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (into, out) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok([ours::keep(into, true)?, ours::keep(out, true)?])
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_connection_goes_through_the_queue() {
        let ready = Ready::create().unwrap();
        assert!(ready.take().is_none());
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = "[fe80::1%3]:80".parse().unwrap();
        let listener = ListenerAddr { local, device: 3, namespace: u32::MAX };
        let sender = "192.0.2.1:5".parse().unwrap();
        assert!(ready.is_empty());
        ready.put(socket.as_fd(), listener, sender).unwrap();
        assert!(!ready.is_empty());
        let entry = ready.take().unwrap();
        assert_eq!((entry.listener, entry.peer), (listener, sender));
        let cookie = |fd: BorrowedFd<'_>| rustix::net::sockopt::socket_cookie(fd).unwrap();
        assert_eq!(cookie(entry.socket.as_fd()), cookie(socket.as_fd()));
    }

    #[test]
    fn a_full_queue_is_an_error() {
        let ready = Ready::create().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let listener = ListenerAddr { local: addr, device: 0, namespace: 0 };
        let full = (0..100_000).find_map(|_| ready.put(socket.as_fd(), listener, addr).err());
        assert!(matches!(full, Some(Errno::AGAIN | Errno::TOOMANYREFS)), "{full:?}");
    }
}
