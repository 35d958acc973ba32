//! Datagrams that came before a listener's sockets were complete.
//!
//! Until the steering program is attached, the kernel chooses among the sockets that are bound so far. Read
//! by the worker of the socket where it lies, an early datagram would open its client's flow there, and later
//! ones another flow with the same tuple in another worker. So they are taken from the sockets before the
//! workers read, and each goes to the worker that the program chooses.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use truepeer_sys::udp::{Arrival, Local, ReceiveBatch};

use super::steering;

/// The least that a datagram takes there.
const LEAST_BYTES: usize = 256;

/// A datagram, and what the kernel said of it.
#[derive(Debug)]
pub(crate) struct EarlyDatagram {
    bytes: Box<[u8]>,
    from: SocketAddr,
    local: Option<Local>,
    device: u32,
    original_destination: Option<SocketAddr>,
}

impl EarlyDatagram {
    /// As it came.
    pub(super) fn arrival(&self) -> Arrival<'_> {
        let Self { bytes, from, local, device, original_destination } = self;
        Arrival {
            bytes,
            segment_bytes: bytes.len(),
            from: *from,
            local: *local,
            device: *device,
            original_destination: *original_destination,
        }
    }
}

/// Takes the datagrams that wait in a listener's sockets. Returns them in the order of the sockets that
/// `program` chooses; it is attached already. `buffer_bytes`: what the kernel was asked for. It doubles that,
/// and what follows was steered.
pub(super) fn take(
    sockets: &[BorrowedFd<'_>],
    buffer_bytes: usize,
    program: &[libc::sock_filter],
) -> Vec<Vec<EarlyDatagram>> {
    let mut taken: Vec<Vec<EarlyDatagram>> = sockets.iter().map(|_| Vec::new()).collect();
    let mut batch = ReceiveBatch::with_room_for(super::BATCH);
    for (number, socket) in sockets.iter().enumerate() {
        let mut bytes = 0;
        while bytes < 2 * buffer_bytes {
            match batch.receive(*socket) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            for arrival in batch.arrivals() {
                for datagram in arrival.datagrams() {
                    bytes += datagram.len().max(LEAST_BYTES);
                    let chosen = steering::choice(program, datagram).filter(|chosen| *chosen < sockets.len());
                    taken[chosen.unwrap_or(number)].push(EarlyDatagram {
                        bytes: datagram.into(),
                        from: arrival.from,
                        local: arrival.local,
                        device: arrival.device,
                        original_destination: arrival.original_destination,
                    });
                }
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Duration;

    use rustix::net::sockopt;
    use truepeer_policy::Dialect;
    use truepeer_proto::{Addresses, Command, Transport, V2Encoder};
    use truepeer_sys::udp::{set_steering, udp_socket};

    use super::*;

    const CLIENTS: u16 = 200;

    fn bound(at: SocketAddr) -> OwnedFd {
        let socket = udp_socket(at).expect("a socket");
        sockopt::set_socket_reuseport(&socket, true).expect("SO_REUSEPORT");
        rustix::net::bind(&socket, &at).expect("bound");
        socket
    }

    fn datagram(client: u16, v6: bool) -> Vec<u8> {
        let transport = Transport::Dgram;
        let addresses = if v6 {
            let [source, destination] =
                ["[2001:db8::7]:0", "[2001:db8::1]:53"].map(|at| at.parse::<SocketAddr>());
            let mut source = source.expect("an address");
            source.set_port(client);
            Addresses::Inet { transport, source, destination: destination.expect("an address") }
        } else {
            let [source, destination] =
                [([203, 0, 113, 7], client), ([192, 0, 2, 1], 53)].map(SocketAddr::from);
            Addresses::Inet { transport, source, destination }
        };
        let mut buffer = [0; 64];
        let header = V2Encoder::new(&mut buffer, Command::Proxy, &addresses).and_then(V2Encoder::finish);
        let length = header.expect("it fits");
        [&buffer[..length], if v6 { b"6" } else { b"4" }].concat()
    }

    fn waiting(socket: &OwnedFd) -> Vec<Vec<u8>> {
        let mut batch = ReceiveBatch::with_room_for(8);
        let mut all = Vec::new();
        while batch.receive(socket.as_fd()).is_ok() {
            all.extend(batch.arrivals().map(|arrival| arrival.bytes.to_vec()));
        }
        all
    }

    /// Early ones go where the kernel takes later ones of the same client.
    #[test]
    fn early_datagrams_go_where_later_ones_of_their_client_do() {
        let first = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
        let at = first.local_addr().expect("its address");
        drop(first);
        let mut sockets = vec![bound(at)];
        let sender = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        let all: Vec<_> = (1..=CLIENTS).map(|client| datagram(client, client.is_multiple_of(3))).collect();
        let send = |datagrams: &[Vec<u8>]| {
            datagrams.iter().for_each(|one| _ = sender.send_to(one, at).expect("sent"))
        };
        let (one_socket, three_sockets) = all.split_at(100);
        send(one_socket);
        sockets.extend([bound(at), bound(at)]);
        send(three_sockets);
        sender.send_to(b"no header", at).expect("sent");
        let program = steering::program(Dialect::Every, sockets.len()).expect("a program");
        set_steering(sockets[0].as_fd(), &program).expect("attached");
        let descriptors: Vec<_> = sockets.iter().map(OwnedFd::as_fd).collect();
        let early = take(&descriptors, 1 << 20, &program);
        let mut by_socket: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for (number, early) in early.iter().enumerate() {
            for datagram in early {
                assert_eq!(by_socket.insert(datagram.bytes.to_vec(), number), None, "twice");
            }
        }
        assert!(by_socket.remove(&b"no header"[..]).is_some(), "it stays where it was");
        assert_eq!(by_socket.len(), all.len());
        assert!(early.iter().all(|early| early.len() > 20), "{by_socket:?}");
        send(&all);
        std::thread::sleep(Duration::from_millis(1));
        let mut later = 0;
        for (number, socket) in sockets.iter().enumerate() {
            for bytes in waiting(socket) {
                assert_eq!(by_socket.get(&bytes), Some(&number));
                later += 1;
            }
        }
        assert_eq!(later, all.len());
    }
}
