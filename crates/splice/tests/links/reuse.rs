//! What a worker that an attacker has taken over can do with a socket after an order under repair.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;

use anyhow::{Result, ensure};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use truepeer_sys::repair::{Order, carry_out};
use truepeer_testbed::Bed;

/// A socket under repair binds beside every other one (SK_FORCE_REUSE), and keeps that when its owner
/// disconnects it.
pub(crate) fn no_order_lends_a_socket_that_binds_beside_others(_bed: &Bed) -> Result<()> {
    let victim = TcpListener::bind("127.0.0.1:0")?;
    let taken = victim.local_addr()?;
    let peer = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    for order in [Order::Stand, Order::AskPeers, Order::Silence] {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.connect(&taken.into())?;
        carry_out(&order, &[socket.as_fd()])?;
        cannot_listen_at(taken, &socket, &order)?;
    }
    // No device has the second address, so the order fails half-way.
    for (own, works) in [("127.0.0.2:9000", true), ("192.0.2.1:9000", false)] {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let order = Order::AskUnattended { own: own.parse()?, peer, numbers: [1, 1], timestamp: None };
        ensure!(carry_out(&order, &[socket.as_fd()]).is_ok() == works, "{order:?}");
        cannot_listen_at(taken, &socket, &order)?;
    }
    Ok(())
}

fn cannot_listen_at(taken: SocketAddr, socket: &Socket, order: &Order) -> Result<()> {
    // A socket that has not connected yet can't be disconnected. It is free already.
    let _ = rustix::net::connect_unspec(socket);
    let bound = rustix::net::bind(socket, &taken);
    // INVAL: it is bound to another port.
    ensure!(
        matches!(bound, Err(Errno::ADDRINUSE | Errno::INVAL)),
        "after {order:?}, bind(2) to a port in use: {bound:?}"
    );
    Ok(())
}
