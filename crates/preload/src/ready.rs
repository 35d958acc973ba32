//! Connections whose header came late and is complete: a queue that every process of the family can put into and take from.
//!
//! It is a pair of unix sockets. The kernel keeps the connections, whoever dies; there is no lock, and no memory that could
//! grow without bound. What waits here is announced to the application by [`truepeer_handover::WakeUp::ring`].

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::{family, ours};

/// Text: two socket addresses, the longest of which has 58 characters.
const MESSAGE_BYTES: usize = 128;

/// Both ends; whoever puts in may also take out.
#[derive(Debug)]
pub(crate) struct Ready {
    into: OwnedFd,
    out: OwnedFd,
}

/// A connection to be handed over.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) socket: OwnedFd,
    /// Where its listener listens.
    pub(crate) listener: SocketAddr,
    /// Whom the program is to see.
    pub(crate) peer: SocketAddr,
}

impl Ready {
    pub(crate) fn create() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (into, out) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { into: ours::keep(into, true)?, out: ours::keep(out, true)? })
    }

    /// The family's, if these descriptors still are what they were.
    pub(crate) fn inherited(into: RawFd, out: RawFd) -> Option<Self> {
        let is_seqpacket = |fd: BorrowedFd<'_>| {
            let kind = rustix::net::sockopt::socket_type(fd).ok()?;
            let domain = rustix::net::sockopt::socket_domain(fd).ok()?;
            (kind == SocketType::SEQPACKET && domain == AddressFamily::UNIX).then(|| fstat(fd).ok()).flatten()
        };
        family::inspect(into, is_seqpacket)?;
        family::inspect(out, is_seqpacket)?;
        Some(Self { into: family::adopt(into), out: family::adopt(out) })
    }

    pub(crate) fn raw(&self) -> [RawFd; 2] {
        [self.into.as_raw_fd(), self.out.as_raw_fd()]
    }

    /// Puts a connection in; the caller's descriptor of it stays open.
    ///
    /// # Errors
    /// `EAGAIN` if the queue is full.
    pub(crate) fn put(
        &self,
        socket: BorrowedFd<'_>,
        listener: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(), Errno> {
        let message = format!("{listener} {peer}");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [socket];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.into, &[IoSlice::new(message.as_bytes())], &mut control, flags).map(drop)
    }

    /// Whether nothing waits to be taken out.
    pub(crate) fn is_empty(&self) -> bool {
        rustix::io::ioctl_fionread(&self.out).is_ok_and(|bytes| bytes == 0)
    }

    /// Takes a connection out, if there is one.
    pub(crate) fn take(&self) -> Option<Entry> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.out, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
        let socket = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })?;
        let text = core::str::from_utf8(bytes.get(..received.bytes)?).ok()?;
        let (listener, peer) = text.split_once(' ')?;
        Some(Entry { socket, listener: listener.parse().ok()?, peer: peer.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_connection_goes_through_the_queue() {
        let ready = Ready::create().unwrap();
        assert!(ready.take().is_none());
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (listener, sender) = ("[fe80::1%3]:80".parse().unwrap(), "192.0.2.1:5".parse().unwrap());
        assert!(ready.is_empty());
        ready.put(socket.as_fd(), listener, sender).unwrap();
        assert!(!ready.is_empty());
        let entry = ready.take().unwrap();
        assert_eq!((entry.listener, entry.peer), (listener, sender));
        let cookie = |fd: BorrowedFd<'_>| rustix::net::sockopt::socket_cookie(fd).unwrap();
        assert_eq!(cookie(entry.socket.as_fd()), cookie(socket.as_fd()));
    }

    #[test]
    fn a_full_queue_says_so() {
        let ready = Ready::create().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let full = (0..100_000).find_map(|_| ready.put(socket.as_fd(), addr, addr).err());
        assert!(matches!(full, Some(Errno::AGAIN | Errno::TOOMANYREFS)), "{full:?}");
    }
}
