//! Messages between a process and its keeper: one datagram each, of limited length, as JSON without unknown
//! fields.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::records::{NeedRecord, OutcomeRecord};

/// Less than a socket takes at once by default (net.core.wmem_default).
const MOST_BYTES: usize = 192 << 10;
/// More needs than these are refused: their records and outcomes fit into one message.
pub(super) const MOST_NEEDS: usize = 1000;
/// A message has at most so many descriptors.
pub(super) const MOST_DESCRIPTORS: usize = 64;

/// A request to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum Request {
    /// Add what is missing of these. `sweeps`: first remove what nobody needs.
    Add { needs: Vec<NeedRecord>, sweeps: bool },
    /// Remove what no living process needs.
    RemoveUnused,
    /// Bind the TCP socket of this message to this address, although another program listens on the port.
    Share { address: SocketAddr },
    /// Open a listening TCP socket, and send it with the answer.
    Listen { address: SocketAddr, reuse_port: bool, transparent: bool, v6_only: bool },
    /// Listen on the bound unix socket of this message.
    ListenLocally { backlog: i32 },
    /// Give the UDP sockets of this message buffers of so many bytes in both directions. There is no answer,
    /// because nobody waits for one.
    Grow { bytes: usize },
    /// End, and leave everything as it is.
    End,
}

/// The keeper's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum Answer {
    /// Sent once, without a request: it is confined, except by these.
    Ready {
        missing: Vec<String>,
    },
    /// The outcome of each need, in the order of the request.
    Added(Vec<OutcomeRecord>),
    /// So many were removed.
    Removed(usize),
    Done,
    /// The kernel refused: the failure in words, and its error number.
    Failed {
        words: String,
        errno: i32,
    },
    /// The keeper did not do it.
    Refused(String),
}

/// A message with its number. An answer has the number of its request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    number: u32,
    body: T,
}

/// What a receiving call has found.
#[derive(Debug)]
pub(super) enum Received<T> {
    Message {
        number: u32,
        body: T,
        descriptors: Vec<OwnedFd>,
    },
    /// No message of this protocol, and why.
    Bad(String),
    /// The other end is closed.
    End,
}

/// Sends one message, without waiting for room.
pub(super) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    number: u32,
    body: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(&Envelope { number, body })?;
    if bytes.len() > MOST_BYTES {
        return Err(io::Error::other(format!("a message of {} bytes", bytes.len())));
    }
    send_bytes(socket, &bytes, descriptors)
}

fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Room for one message.
pub(super) fn room() -> Vec<u8> {
    vec![0; MOST_BYTES]
}

/// Receives one message. `flags`: whether to wait for it.
///
/// # Errors
/// That of recvmsg(2).
pub(super) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    flags: RecvFlags,
) -> io::Result<Received<T>> {
    receive_into(&mut room(), socket, flags)
}

/// As [`receive`], into a [`room`].
pub(super) fn receive_into<T: DeserializeOwned>(
    bytes: &mut [u8],
    socket: BorrowedFd<'_>,
    flags: RecvFlags,
) -> io::Result<Received<T>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Ok(Received::Bad("it is too long, or has too many descriptors".to_owned()));
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    Ok(match serde_json::from_slice::<Envelope<T>>(&bytes[..received.bytes]) {
        Ok(Envelope { number, body }) => Received::Message { number, body, descriptors },
        Err(error) => Received::Bad(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn received(bytes: &[u8]) -> Received<Request> {
        let (here, there) = pair();
        send_bytes(here.as_fd(), bytes, &[]).unwrap();
        receive(there.as_fd(), RecvFlags::DONTWAIT).unwrap()
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let (here, there) = pair();
        let request = Request::Share { address: "192.0.2.7:5000".parse().unwrap() };
        let file = File::open("/dev/null").unwrap();
        send(here.as_fd(), 7, &request, &[file.as_fd()]).unwrap();
        let Received::Message { number: 7, body, descriptors } =
            receive::<Request>(there.as_fd(), RecvFlags::DONTWAIT).unwrap()
        else {
            panic!("another message")
        };
        assert_eq!((body, descriptors.len()), (request, 1));
        drop(here);
        assert!(matches!(receive::<Request>(there.as_fd(), RecvFlags::empty()).unwrap(), Received::End));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [
            &b"{}"[..],
            b"\0",
            b"{\"number\":1,\"body\":\"end\"} ls",
            b"{\"number\":1,\"body\":\"end\",\"more\":1}",
            b"{\"number\":-1,\"body\":\"end\"}",
            b"{\"number\":4294967296,\"body\":\"end\"}",
            b"{\"number\":1,\"body\":\"run\"}",
            b"{\"number\":1,\"body\":{\"add\":{\"needs\":[]}}}",
            b"{\"number\":1,\"body\":{\"add\":{\"needs\":[{\"switch\":256}],\"sweeps\":true}}}",
            b"{\"number\":1,\"body\":{\"add\":{\"needs\":[\"rule\"],\"sweeps\":true}}}",
            b"{\"number\":1,\"body\":{\"share\":{\"address\":\"example.org:80\"}}}",
            b"{\"number\":1,\"body\":{\"grow\":{\"bytes\":-1}}}",
            &vec![b'['; 100_000],
        ] {
            assert!(matches!(received(bytes), Received::Bad(_)), "{}", String::from_utf8_lossy(bytes));
        }
        assert!(matches!(received(b"{\"number\":1,\"body\":\"end\"}"), Received::Message { number: 1, .. }));
    }

    #[test]
    fn a_message_that_is_too_long_is_neither_sent_nor_taken() {
        let (here, there) = pair();
        let long = Answer::Refused("x".repeat(MOST_BYTES));
        send(here.as_fd(), 1, &long, &[]).unwrap_err();
        send_bytes(here.as_fd(), &vec![b' '; MOST_BYTES + 1], &[]).unwrap();
        assert!(matches!(receive::<Answer>(there.as_fd(), RecvFlags::DONTWAIT).unwrap(), Received::Bad(_)));
    }

    #[test]
    fn a_message_with_too_many_descriptors_is_refused_and_they_are_closed() {
        let (here, there) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let bytes = b"{\"number\":1,\"body\":\"end\"}";
        {
            let many = [writer.as_fd(); MOST_DESCRIPTORS + 8];
            send_bytes(here.as_fd(), bytes, &many).unwrap_err();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS + 8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            sendmsg(&here, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        }
        drop(writer);
        assert!(matches!(receive::<Request>(there.as_fd(), RecvFlags::DONTWAIT).unwrap(), Received::Bad(_)));
        // No copy of the writing end is left.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    }
}
