//! Finishes a connection whose client is known: removes its header and stores its client.

use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::net::sockopt;
use truepeer_handover::{
    ConnectionTuple, Look, Name, OLDEST_FORGOTTEN, Refused, Remembered, Shown, SocketDiag, as_seen_by, take,
};
use truepeer_policy::{ClientAddr, SenderAddr};

use crate::role::Accepting;
use crate::say;

/// Removes the header, stores the client's name, and returns the address for the program.
pub(crate) fn settle(
    socket: BorrowedFd<'_>,
    sender: SocketAddr,
    look: &Look,
    role: &Accepting,
) -> Result<SocketAddr, Refused> {
    let left = |_| Refused::Left { sender: SenderAddr::new(sender) };
    match *look {
        Look::Named { client, destination, consumed } => {
            let shown = name(socket, sender, client, destination, role)?;
            take(socket, consumed).map_err(left)?;
            Ok(shown)
        }
        Look::Plain { consumed } => {
            take(socket, consumed).map_err(left)?;
            say::in_detail(format_args!("{sender}: for itself"));
            Ok(sender)
        }
        Look::Refused(refused) => Err(refused),
        Look::NeedMore | Look::WakeUp => Err(Refused::Left { sender: SenderAddr::new(sender) }),
    }
}

fn name(
    socket: BorrowedFd<'_>,
    sender: SocketAddr,
    client: ClientAddr,
    destination: SocketAddr,
    role: &Accepting,
) -> Result<SocketAddr, Refused> {
    let is_v6 = sender.is_ipv6();
    let Shown::As(shown) = as_seen_by(client, is_v6) else {
        let text = format_args!(
            "the program listens on an IPv4 socket, which can't show an IPv6 client: it sees the sender \
            {sender} instead of {client}; make it listen on [::]"
        );
        say::complaint("client_not_showable", Some(sender.ip()), text);
        return Ok(sender);
    };
    say::in_detail(format_args!("{shown} by {sender}"));
    if !role.names_later {
        return Ok(shown);
    }
    let destination = match as_seen_by(ClientAddr::new(destination), is_v6) {
        Shown::As(destination) => Some(destination),
        Shown::NotShowable => None,
    };
    let full = |_| Refused::NoRoom { sender: SenderAddr::new(sender) };
    let left = |_| Refused::Left { sender: SenderAddr::new(sender) };
    let tuple = ConnectionTuple::of(socket, sender).map_err(left)?;
    let cookie = sockopt::socket_cookie(socket).map_err(left)?;
    let name = Name { client: shown, destination, tuple };
    let remembered = role.family.names.insert(cookie, &name, &mut SocketDiag::new()).map_err(full)?;
    if remembered == Remembered::InPlaceOfAnother {
        say::complaint("names_forgotten", None, format_args!("{OLDEST_FORGOTTEN}"));
    }
    Ok(shown)
}
