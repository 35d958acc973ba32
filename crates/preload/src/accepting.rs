//! `accept()`: loops until there is a connection whose client is known.

use core::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with, sockopt};
use truepeer_handover::{
    Look, Name, OLDEST_FORGOTTEN, Refused, Remembered, Shown, SocketDiag, Tuple, as_seen_by, look, take,
};
use truepeer_policy::{ClientAddr, SenderAddr};

use crate::hold::Hold;
use crate::ready::Entry;
use crate::role::Accepting;
use crate::{listeners, say, waiter};

/// The address to return to the program.
pub(crate) enum Peer {
    /// The sockaddr from the kernel; it may not be an internet address.
    AsItIs(Option<SocketAddrAny>),
    /// The client, or the sender in its place.
    Known(SocketAddr),
}

/// Accepts as accept4(2) does, but skips connections that the program must not see, or not yet. Blocks where
/// accept4(2) would.
///
/// # Errors
/// Those of accept4(2); ECONNABORTED as in [`Hold`].
pub(crate) fn accept(
    listener: BorrowedFd<'_>,
    flags: SocketFlags,
    role: &Accepting,
) -> Result<(OwnedFd, Peer), Errno> {
    listeners::on_first_accept(listener, &role.rules);
    let hold = Hold::on(listener);
    loop {
        if let Some(hold) = &hold {
            hold.until_readable(listener)?;
        }
        let (socket, peer) = acceptfrom_with(listener, flags)?;
        let Some(sender) = peer.as_ref().and_then(|peer| SocketAddr::try_from(peer.clone()).ok()) else {
            return Ok((socket, Peer::AsItIs(peer)));
        };
        if !is_meant(socket.as_fd(), role) {
            return Ok((socket, Peer::AsItIs(peer)));
        }
        match look(socket.as_fd(), SenderAddr::new(sender), &role.rules, &role.family.wake) {
            Look::NeedMore => waiter::wait(socket, listener, sender),
            Look::WakeUp => {
                drop(socket);
                if let Some(late) = take_late(listener, role) {
                    return finish(late, flags);
                }
            }
            decided => match settle(socket.as_fd(), sender, &decided, role) {
                Ok(shown) => return Ok((socket, Peer::Known(shown))),
                Err(refused) => say::refusal(&refused),
            },
        }
    }
}

fn is_meant(socket: BorrowedFd<'_>, role: &Accepting) -> bool {
    let meant = &role.rules.listeners;
    meant.all() || listeners::local(socket).is_some_and(|local| meant.has(local))
}

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
            "the program listens on an IPv4 socket, which can't show an IPv6 client: it sees the sender {sender} instead of {client}; make it listen on [::]"
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
    let tuple = Tuple::of(socket, sender).map_err(left)?;
    let cookie = sockopt::socket_cookie(socket).map_err(left)?;
    let name = Name { client: shown, destination, tuple };
    let remembered = role.family.names.insert(cookie, &name, &mut SocketDiag::new()).map_err(full)?;
    if remembered == Remembered::InPlaceOfAnother {
        say::complaint("names_forgotten", None, format_args!("{OLDEST_FORGOTTEN}"));
    }
    Ok(shown)
}

/// Takes a late connection of this listener, or of another listener on its address. Those of other addresses are
/// put back and announced again: a process that was woken for them may have searched in vain meanwhile.
fn take_late(listener: BorrowedFd<'_>, role: &Accepting) -> Option<Entry> {
    let local = listeners::local(listener)?;
    let mut others = Vec::new();
    let found = loop {
        match role.family.ready.take() {
            Some(entry) if entry.listener == local => break Some(entry),
            Some(entry) => others.push(entry),
            None => break None,
        }
    };
    for other in others {
        if role.family.ready.put(other.socket.as_fd(), other.listener, other.peer).is_ok() {
            // If this fails, the next wake-up of any process finds it.
            let _ = role.family.wake.ring(other.listener);
        }
    }
    found
}

/// Continues as if accept4 had just returned it.
fn finish(late: Entry, flags: SocketFlags) -> Result<(OwnedFd, Peer), Errno> {
    let cloexec = flags.contains(SocketFlags::CLOEXEC);
    fcntl_setfd(&late.socket, if cloexec { FdFlags::CLOEXEC } else { FdFlags::empty() })?;
    rustix::io::ioctl_fionbio(&late.socket, flags.contains(SocketFlags::NONBLOCK))?;
    Ok((late.socket, Peer::Known(late.peer)))
}
