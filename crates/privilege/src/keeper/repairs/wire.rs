//! Orders and answers as bytes, of fixed length and layout: a session that leaves waits for some of them.
//!
//! ```text
//! order:  number 4 | kind 1 | has timestamp 1 | 0 0 | own address 16, port 2 | peer's address 16, port 2 | expected 4 | acknowledged 4 | timestamp 4
//! answer: number 4 | errno 4, or 0 | of two sockets: next to write 4 | first received 4 | of each: 1 where it stands, 2 and next to write | 0 0
//! ```
//! Numbers have the machine's byte order, ports the network's. IPv4 addresses are mapped (::ffff:a.b.c.d).
//! Unused bytes are 0.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use truepeer_sys::repair::{Order, Stand, Stands};

const ORDER_BYTES: usize = 56;
const ANSWER_BYTES: usize = 28;
/// A session has two sockets.
pub(super) const MOST_SOCKETS: usize = 2;

const STAND: u8 = 1;
const ASK_PEERS: u8 = 2;
const SILENCE: u8 = 3;
const RESET: u8 = 4;
const ASK_UNATTENDED: u8 = 5;

/// What came of an order.
pub(super) type Outcome = Result<Stands, Errno>;

/// What a receiving call has found.
#[derive(Debug)]
pub(super) enum Received<T> {
    /// A message with its number.
    Message(u32, T, Vec<OwnedFd>),
    /// No message of this protocol.
    Bad,
    /// The other end is closed.
    End,
}

/// A message of fixed length.
pub(super) trait Message: Sized {
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Default + PartialEq;

    fn encode(&self, number: u32) -> Self::Bytes;
    fn decode(bytes: &Self::Bytes) -> Option<(u32, Self)>;
}

/// The bytes of an order: a newtype, because arrays of this length have no `Default`.
#[derive(Debug, PartialEq)]
pub(super) struct OrderBytes([u8; ORDER_BYTES]);

impl Default for OrderBytes {
    fn default() -> Self {
        Self([0; ORDER_BYTES])
    }
}

impl AsRef<[u8]> for OrderBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for OrderBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Message for Order {
    type Bytes = OrderBytes;

    fn encode(&self, number: u32) -> OrderBytes {
        let mut bytes = [0; ORDER_BYTES];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        let mut word = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        let (kind, ends, stamped) = match *self {
            Self::Stand => (STAND, None, false),
            Self::AskPeers => (ASK_PEERS, None, false),
            Self::Silence => (SILENCE, None, false),
            Self::Reset { own, peer, expected } => {
                word(44, expected);
                (RESET, Some([own, peer]), false)
            }
            Self::AskUnattended { own, peer, numbers: [expected, acknowledged], timestamp } => {
                word(44, expected);
                word(48, acknowledged);
                word(52, timestamp.unwrap_or(0));
                (ASK_UNATTENDED, Some([own, peer]), timestamp.is_some())
            }
        };
        (bytes[4], bytes[5]) = (kind, stamped.into());
        for (at, end) in [8, 26].into_iter().zip(ends.into_iter().flatten()) {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[at..at + 16].copy_from_slice(&ip.octets());
            bytes[at + 16..at + 18].copy_from_slice(&end.port().to_be_bytes());
        }
        OrderBytes(bytes)
    }

    fn decode(bytes: &OrderBytes) -> Option<(u32, Self)> {
        let bytes = &bytes.0;
        let end = |at: usize| {
            let ip = Ipv6Addr::from(array::<16>(bytes, at));
            SocketAddr::new(IpAddr::from(ip).to_canonical(), u16::from_be_bytes(array(bytes, at + 16)))
        };
        let word = |at| u32::from_ne_bytes(array(bytes, at));
        let (own, peer, expected) = (end(8), end(26), word(44));
        let order = match bytes[4] {
            STAND => Self::Stand,
            ASK_PEERS => Self::AskPeers,
            SILENCE => Self::Silence,
            RESET => Self::Reset { own, peer, expected },
            ASK_UNATTENDED => Self::AskUnattended {
                own,
                peer,
                numbers: [expected, word(48)],
                timestamp: (bytes[5] == 1).then(|| word(52)),
            },
            _ => return None,
        };
        Some((word(0), order))
    }
}

impl Message for Outcome {
    type Bytes = [u8; ANSWER_BYTES];

    fn encode(&self, number: u32) -> Self::Bytes {
        let mut bytes = [0; ANSWER_BYTES];
        let mut word = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        word(0, number);
        match self {
            Err(errno) => word(4, errno.raw_os_error().cast_unsigned()),
            Ok(stands) => {
                for (index, stand) in stands.iter().enumerate() {
                    let Some(stand) = stand else { continue };
                    word(8 + 8 * index, stand.next_to_write.unwrap_or(0));
                    word(12 + 8 * index, stand.first_received);
                }
                for (index, stand) in stands.iter().enumerate() {
                    bytes[24 + index] = stand.map_or(0, |stand| 1 + u8::from(stand.next_to_write.is_some()));
                }
            }
        }
        bytes
    }

    fn decode(bytes: &Self::Bytes) -> Option<(u32, Self)> {
        let word = |at| u32::from_ne_bytes(array(bytes, at));
        let stand = |index: usize| {
            let (next, first_received) = (word(8 + 8 * index), word(12 + 8 * index));
            let next_to_write = (bytes[24 + index] == 2).then_some(next);
            (bytes[24 + index] > 0).then_some(Stand { next_to_write, first_received })
        };
        let outcome = match word(4) {
            0 => Ok([stand(0), stand(1)]),
            errno @ 1..4096 => Err(Errno::from_raw_os_error(errno.cast_signed())),
            _ => return None,
        };
        Some((word(0), outcome))
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

/// Sends one message, without waiting for room.
///
/// # Errors
/// That of sendmsg(2).
pub(super) fn send<M: Message>(
    socket: BorrowedFd<'_>,
    number: u32,
    message: &M,
    sockets: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let bytes = message.encode(number);
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes.as_ref())], &mut control, flags)).map(drop)
}

/// Waits for one message.
///
/// # Errors
/// That of recvmsg(2): EAGAIN if the socket has a time-out.
pub(super) fn receive<M: Message>(socket: BorrowedFd<'_>) -> io::Result<Received<M>> {
    let mut bytes = M::Bytes::default();
    let length = bytes.as_ref().len();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut room = [IoSliceMut::new(bytes.as_mut())];
        recvmsg(socket, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            sockets.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Ok(Received::Bad);
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    // Encoded again it is the same: all that does not belong to it is 0.
    let decoded = (received.bytes == length).then(|| M::decode(&bytes)).flatten();
    let decoded = decoded.filter(|(number, message)| message.encode(*number) == bytes);
    Ok(decoded.map_or(Received::Bad, |(number, message)| Received::Message(number, message, sockets)))
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

    fn orders() -> Vec<Order> {
        let ends =
            ["192.0.2.1:443", "[2001:db8::1]:5000", "[::1]:1", "0.0.0.0:0"].map(|end| end.parse().unwrap());
        let mut orders = vec![Order::Stand, Order::AskPeers, Order::Silence];
        for own in ends {
            for peer in ends {
                orders.push(Order::Reset { own, peer, expected: u32::MAX });
                for timestamp in [None, Some(0), Some(7)] {
                    orders.push(Order::AskUnattended { own, peer, numbers: [1, 2], timestamp });
                }
            }
        }
        orders
    }

    #[test]
    fn an_order_and_its_answer_arrive_as_they_were_sent() {
        let (here, there) = pair();
        let file = File::open("/dev/null").unwrap();
        for (number, order) in (1..).zip(orders()) {
            send(here.as_fd(), number, &order, &[file.as_fd(), file.as_fd()]).unwrap();
            let Received::Message(of, received, sockets) = receive::<Order>(there.as_fd()).unwrap() else {
                panic!("{order:?}")
            };
            assert_eq!((of, received, sockets.len()), (number, order, 2));
        }
        let stand = |next_to_write| Some(Stand { next_to_write, first_received: 9 });
        let both = [stand(Some(7)), stand(Some(u32::MAX))];
        for outcome in [
            Ok([None; 2]),
            Ok([stand(None), None]),
            Ok([stand(Some(0)), stand(None)]),
            Ok(both),
            Err(Errno::PERM),
        ] {
            send::<Outcome>(there.as_fd(), 7, &outcome, &[]).unwrap();
            let Received::Message(7, received, _) = receive::<Outcome>(here.as_fd()).unwrap() else {
                panic!("{outcome:?}")
            };
            assert_eq!(received, outcome);
        }
        drop(here);
        assert!(matches!(receive::<Order>(there.as_fd()).unwrap(), Received::End));
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let (here, there) = pair();
        let is_bad = |bytes: &[u8]| {
            rustix::io::write(&here, bytes).unwrap();
            matches!(receive::<Order>(there.as_fd()).unwrap(), Received::Bad)
        };
        let order = Order::Stand.encode(1).0;
        assert!(!is_bad(&order));
        assert!(is_bad(&order[..55]) && is_bad(&[&order[..], &[0]].concat()) && is_bad(b"{}"));
        for (at, value) in [(4, 0), (4, 6), (4, 255), (5, 1), (6, 1), (8, 1), (25, 1), (44, 1), (55, 1)] {
            let mut bytes = order;
            bytes[at] = value;
            assert!(is_bad(&bytes), "{at} {value}");
        }
    }

    #[test]
    fn a_message_with_too_many_descriptors_is_refused_and_they_are_closed() {
        let (here, there) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        {
            let many = [writer.as_fd(); 16];
            assert_eq!(send(here.as_fd(), 1, &Order::Stand, &many), Err(Errno::INVAL));
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            let bytes = Order::Stand.encode(1).0;
            sendmsg(&here, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
        }
        drop(writer);
        assert!(matches!(receive::<Order>(there.as_fd()).unwrap(), Received::Bad));
        // No copy of the writing end is left.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    }
}
