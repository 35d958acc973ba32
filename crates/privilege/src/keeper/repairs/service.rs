//! The repair keeper's side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_protocol;
use rustix::net::{AddressFamily, ipproto};
use truepeer_sys::repair::{Order, carry_out, is_under_repair};
use truepeer_sys::socket::{is_unconnected, local_address};

use super::super::service::{is_ready, is_tcp};
use super::wire::{self, Outcome, Received};

/// Serves until its process says so, or ends. Returns the exit status.
pub(super) fn serve(line: &OwnedFd, confine: impl FnOnce() -> anyhow::Result<Vec<String>>) -> i32 {
    let _ = rustix::thread::set_name(c"truepeer-splice");
    if !is_ready(line.as_fd(), confine) {
        return 1;
    }
    obey_all(line.as_fd(), obey);
    0
}

/// Carries out orders until nobody waits for the answers any more.
fn obey_all(line: BorrowedFd<'_>, mut obey: impl FnMut(&Order, &[OwnedFd]) -> Outcome) {
    loop {
        let (number, outcome) = match wire::receive(line) {
            // The session may have gone on meanwhile.
            _ if is_closed(line) => return,
            Ok(Received::Message(number, order, sockets)) => (number, obey(&order, &sockets)),
            Ok(Received::Bad) => (0, Err(Errno::PROTO)),
            Ok(Received::End) | Err(_) => return,
        };
        // The other process has one order under way at a time, so there is room.
        let _ = wire::send::<Outcome>(line, number, &outcome, &[]);
    }
}

fn is_closed(line: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(line, PollFlags::empty())];
    matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1))
}

/// EACCES: it does not do that.
fn obey(order: &Order, sockets: &[OwnedFd]) -> Outcome {
    let mut sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    if *order == Order::Silence {
        // These are silent anyway. Their owner must not connect them under repair.
        sockets.retain(|socket| !is_unconnected(*socket));
    }
    if !is_permitted(order, &sockets) {
        return Err(Errno::ACCESS);
    }
    carry_out(order, &sockets).map_err(|failed| failed.errno)
}

/// The kernel itself refuses listeners.
///
/// A socket that comes under repair must not leave it: its owner may have connected it without a handshake,
/// by numbers of its choice. This is a check before the use, so the owner may still do that in between: see
/// docs/decisions/keeper.md.
fn is_permitted(order: &Order, sockets: &[BorrowedFd<'_>]) -> bool {
    let leaves_repair = |socket: &BorrowedFd<'_>| is_under_repair(*socket) != Ok(true);
    match *order {
        Order::Stand | Order::AskPeers => {
            sockets.iter().all(|socket| is_connection(*socket) && leaves_repair(socket))
        }
        Order::Silence => sockets.iter().all(|socket| is_connection(*socket)),
        Order::Reset { own, peer, .. } => sockets.is_empty() && own.is_ipv4() == peer.is_ipv4(),
        Order::AskUnattended { own, peer, .. } => {
            let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let is_new = |socket: &BorrowedFd<'_>| {
                is_tcp(*socket, family)
                    && is_unconnected(*socket)
                    && local_address(*socket).is_ok_and(|local| local.port() == 0)
            };
            own.is_ipv4() == peer.is_ipv4() && matches!(sockets, [socket] if is_new(socket))
        }
    }
}

/// Of another family, a socket with this protocol's number is raw: then the options of TCP fail.
fn is_connection(socket: BorrowedFd<'_>) -> bool {
    socket_protocol(socket) == Ok(Some(ipproto::TCP)) && !is_unconnected(socket)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{SocketAddr, TcpListener, UdpSocket};

    use rustix::net::{SocketFlags, SocketType};

    use super::*;

    fn connection() -> [OwnedFd; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::connect(&one, &listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0.into()]
    }

    fn new() -> OwnedFd {
        truepeer_sys::socket::tcp_socket("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    fn is_permitted(order: Order, sockets: &[OwnedFd]) -> bool {
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        super::is_permitted(&order, &sockets)
    }

    #[test]
    fn only_tcp_connections_are_put_under_repair() {
        let others = || -> Vec<OwnedFd> {
            vec![
                File::open("/dev/null").unwrap().into(),
                UdpSocket::bind("127.0.0.1:0").unwrap().into(),
                std::os::unix::net::UnixStream::pair().unwrap().0.into(),
                new(),
            ]
        };
        for order in [Order::Stand, Order::AskPeers, Order::Silence] {
            let [one, other] = connection();
            assert!(is_permitted(order, &[one]), "{order:?}");
            for wrong in others() {
                assert!(!is_permitted(order, &[wrong]), "{order:?}");
            }
            let both = [other, new()];
            assert!(!is_permitted(order, &both), "{order:?}");
        }
    }

    #[test]
    fn only_a_new_socket_asks_and_a_reset_has_none() {
        let (own, peer): (SocketAddr, SocketAddr) =
            ("192.0.2.1:443".parse().unwrap(), "192.0.2.7:5000".parse().unwrap());
        let other: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
        let ask = |own, peer| Order::AskUnattended { own, peer, numbers: [1, 2], timestamp: None };
        let reset = |own, peer| Order::Reset { own, peer, expected: 1 };
        assert!(is_permitted(ask(own, peer), &[new()]) && is_permitted(reset(own, peer), &[]));
        assert!(!is_permitted(ask(own, peer), &[]) && !is_permitted(reset(own, peer), &[new()]));
        assert!(!is_permitted(ask(own, other), &[new()]) && !is_permitted(reset(own, other), &[]));
        assert!(!is_permitted(ask(other, other), &[new()]));
        let [connected, _other] = connection();
        for wrong in [TcpListener::bind("127.0.0.1:0").unwrap().into(), connected] {
            assert!(!is_permitted(ask(own, peer), &[wrong]));
        }
    }

    #[test]
    fn an_order_that_nobody_waits_for_is_not_carried_out() {
        let (here, there) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let both = connection();
        let sockets: Vec<_> = both.iter().map(AsFd::as_fd).collect();
        for number in [1, 2] {
            wire::send(here.as_fd(), number, &Order::Silence, &sockets).unwrap();
        }
        let mut here = Some(here);
        let mut carried_out = 0;
        obey_all(there.as_fd(), |_, _| {
            carried_out += 1;
            here.take();
            Ok([None; 2])
        });
        // Only the first: nobody waits for the second.
        assert_eq!(carried_out, 1);
    }
}
