//! `accept()`: loops until there is a connection whose client is known.

use core::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{SocketAddrAny, SocketFlags};
use truepeer_handover::{ListenerAddr, Look, is_guarded, look};
use truepeer_policy::SenderAddr;
use truepeer_sys::marked;

use crate::bell::Pause;
use crate::hold::Hold;
use crate::ready::Entry;
use crate::role::Accepting;
use crate::settling::settle;
use crate::{bell, listeners, say, waiter};

/// The address to return to the program.
pub(crate) enum Peer {
    /// The sockaddr from the kernel; it may not be an internet address.
    AsItIs(Option<SocketAddrAny>),
    /// The client, or the sender in its place.
    Known(SocketAddr),
}

/// Accepts as accept4(2) does, but skips connections that the program must not see, or not yet.
///
/// # Errors
/// Those of accept4(2); ECONNABORTED as in [`Hold`]; [`bell::WAIT`] where accept4(2) would block.
pub(crate) fn accept(
    listener: BorrowedFd<'_>,
    flags: SocketFlags,
    role: &Accepting,
    pause: &mut Option<Pause>,
) -> Result<(OwnedFd, Peer), Errno> {
    listeners::on_first_accept(listener, &role.rules);
    let mut hold = Hold::on(listener);
    let mut is_rung = false;
    loop {
        if (role.family.names.take_announcement() || is_rung)
            && let Some(late) = take_late(listener, role, |_| role.family.names.announce())
        {
            if !role.family.ready.is_empty() {
                role.family.names.announce();
                waiter::repeat(late.listener);
            }
            return finish(late, flags, role);
        }
        let blocks = bell::blocks(listener);
        is_rung = match &hold {
            Some(hold) => hold.until_readable(listener)?,
            None => blocks && bell::until_readable(listener, pause)?,
        };
        if is_rung {
            continue;
        }
        let accept = || marked::accept(listener, flags);
        let taken = if blocks { bell::take_one(listener, accept) } else { accept().map(Some) };
        let (socket, peer) = match taken {
            Ok(Some(accepted)) => accepted,
            // The supervisor sets O_NONBLOCK for a moment while it accepts.
            Ok(None) => continue,
            Err(Errno::AGAIN) if bell::blocks(listener) => continue,
            Err(error) => return Err(error),
        };
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
                let ring = |other| {
                    let _ = role.family.wake.ring(other);
                };
                if let Some(late) = take_late(listener, role, ring) {
                    return finish(late, flags, role);
                }
            }
            decided => match settle(socket.as_fd(), sender, &decided, role) {
                Ok(shown) => return Ok((socket, Peer::Known(shown))),
                Err(refused) => say::refusal(&refused),
            },
        }
        hold = hold.or_else(|| Hold::in_vain(listener));
    }
}

fn is_meant(socket: BorrowedFd<'_>, role: &Accepting) -> bool {
    let meant = &role.rules.listeners;
    meant.all() || listeners::local(socket).is_some_and(|local| meant.has(local))
}

/// Takes a late connection of this listener, or of another one of its address, device and namespace. Those of
/// others are put back and announced again: a process that was woken for them may have searched in vain
/// meanwhile.
fn take_late(listener: BorrowedFd<'_>, role: &Accepting, announce: impl Fn(ListenerAddr)) -> Option<Entry> {
    let Ok(own) = ListenerAddr::of(listener) else {
        role.family.names.announce(); // a unix socket: the announcement is for another listener
        return None;
    };
    let mut others = Vec::new();
    let mut found = None;
    // One at a time: the program may have few descriptors left.
    let mut unseen = role.family.ready.bytes();
    while unseen > 0
        && let Some(entry) = role.family.ready.take()
    {
        if entry.listener == own {
            found = Some(entry);
            break;
        }
        unseen = unseen.saturating_sub(entry.bytes);
        if role.family.ready.put_back(&entry) && !others.contains(&entry.listener) {
            others.push(entry.listener);
        }
    }
    others.into_iter().for_each(announce);
    found
}

/// Continues as if accept4 had just returned it.
fn finish(late: Entry, flags: SocketFlags, role: &Accepting) -> Result<(OwnedFd, Peer), Errno> {
    let cloexec = flags.contains(SocketFlags::CLOEXEC);
    fcntl_setfd(&late.socket, if cloexec { FdFlags::CLOEXEC } else { FdFlags::empty() })?;
    rustix::io::ioctl_fionbio(&late.socket, flags.contains(SocketFlags::NONBLOCK))?;
    if role.rules.has_optional && is_guarded(late.socket.as_fd(), &role.rules) {
        waiter::watch(late.socket.as_fd());
    }
    Ok((late.socket, Peer::Known(late.peer)))
}
