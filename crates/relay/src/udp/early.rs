//! Datagrams that came before a listener's sockets were complete.
//!
//! Until the steering program is attached, the kernel chooses among the sockets that are bound so far. Read by the worker of the
//! socket where it lies, an early datagram would open its client's flow there, and later ones another flow with the same tuple in
//! another worker. So they are taken from the sockets before the workers read, and each goes to the worker that the program chooses.

use std::net::SocketAddr;

use std::os::fd::AsFd as _;

use truepeer_sys::udp::{Arrival, Local, ReceiveBatch};

use super::gate::{BUFFER_BYTES, Gate};
use super::steering;

/// What a socket can hold: the kernel doubles the size that it is asked for. What follows was steered.
const MOST_BYTES: usize = 2 * BUFFER_BYTES;
/// The least that a datagram takes there.
const LEAST_BYTES: usize = 256;

/// A datagram, and what the kernel said of it.
#[derive(Debug)]
pub(crate) struct EarlyDatagram {
    bytes: Box<[u8]>,
    from: SocketAddr,
    local: Option<Local>,
    original_destination: Option<SocketAddr>,
}

impl EarlyDatagram {
    /// As it came.
    pub(super) fn arrival(&self) -> Arrival<'_> {
        let Self { bytes, from, local, original_destination } = self;
        Arrival {
            bytes,
            segment_bytes: bytes.len(),
            from: *from,
            local: *local,
            original_destination: *original_destination,
        }
    }
}

/// Gives the datagrams that wait in the sockets to the gates that `program` chooses. It is attached already.
pub(super) fn hand_out(gates: &mut [Gate], program: &[libc::sock_filter]) {
    let mut batch = ReceiveBatch::with_room_for(super::BATCH);
    for number in 0..gates.len() {
        let mut bytes = 0;
        while bytes < MOST_BYTES {
            match batch.receive(gates[number].socket.as_fd()) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            for arrival in batch.arrivals() {
                for datagram in arrival.datagrams() {
                    bytes += datagram.len().max(LEAST_BYTES);
                    let chosen = steering::choice(program, datagram).filter(|chosen| *chosen < gates.len());
                    gates[chosen.unwrap_or(number)].early.push(EarlyDatagram {
                        bytes: datagram.into(),
                        from: arrival.from,
                        local: arrival.local,
                        original_destination: arrival.original_destination,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::UdpSocket;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::net::sockopt;
    use truepeer_policy::Dialect;
    use truepeer_proto::{Addresses, Command, Transport, V2Encoder};
    use truepeer_session::ListenerId;
    use truepeer_sys::udp::{set_steering, udp_socket};

    use super::*;
    use crate::udp::tuples::Tuples;

    const CLIENTS: u16 = 200;

    fn gate(number: usize, at: SocketAddr) -> Gate {
        let socket = udp_socket(at).expect("a socket");
        sockopt::set_socket_reuseport(&socket, true).expect("SO_REUSEPORT");
        rustix::net::bind(&socket, &at).expect("bound");
        Gate {
            listener: ListenerId::new(0),
            number,
            port: at.port(),
            can_segment: false,
            socket: Arc::new(socket),
            tuples: Tuples::default(),
            early: Vec::new(),
        }
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
        let mut gates = vec![gate(0, at)];
        let sender = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        let all: Vec<_> = (1..=CLIENTS).map(|client| datagram(client, client.is_multiple_of(3))).collect();
        let send = |datagrams: &[Vec<u8>]| {
            datagrams.iter().for_each(|one| _ = sender.send_to(one, at).expect("sent"))
        };
        let (one_socket, three_sockets) = all.split_at(100);
        send(one_socket);
        gates.extend([gate(1, at), gate(2, at)]);
        send(three_sockets);
        sender.send_to(b"no header", at).expect("sent");
        let program = steering::program(Dialect::Every, gates.len()).expect("a program");
        set_steering(gates[0].socket.as_fd(), &program).expect("attached");
        hand_out(&mut gates, &program);
        let early = |gate: &Gate| gate.early.iter().map(|one| one.bytes.to_vec()).collect::<Vec<_>>();
        let mut by_gate: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for gate in &gates {
            for bytes in early(gate) {
                assert_eq!(by_gate.insert(bytes, gate.number), None, "twice");
            }
        }
        assert!(by_gate.remove(&b"no header"[..]).is_some(), "it stays where it was");
        assert_eq!(by_gate.len(), all.len());
        assert!(gates.iter().all(|gate| gate.early.len() > 20), "{by_gate:?}");
        send(&all);
        std::thread::sleep(Duration::from_millis(1));
        let mut later = 0;
        for gate in &gates {
            for bytes in waiting(&gate.socket) {
                assert_eq!(by_gate.get(&bytes), Some(&gate.number));
                later += 1;
            }
        }
        assert_eq!(later, all.len());
    }
}
