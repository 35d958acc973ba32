//! Hands a connection over: stores its name, writes its address, installs its descriptor, and answers the
//! call last.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use truepeer_handover::{
    ConnectionTuple, Name, OLDEST_FORGOTTEN, Refused, Remembered, Shown, as_seen_by, is_guarded,
};
use truepeer_policy::ClientAddr;
use truepeer_sys::seccomp::{Answer, Notification};

use super::accepting::{SOCK_CLOEXEC, SOCK_NONBLOCK, flags_of};
use super::caller::write_address;
use super::listener::SupervisedListener;
use super::ready::Connection;
use super::supervisor::Supervisor;

impl Supervisor {
    /// Answers accept() with this connection. If the caller has been killed, the connection stays for another
    /// caller.
    pub(super) fn hand_over(
        &mut self,
        call: &Notification,
        listener: &Arc<SupervisedListener>,
        mut connection: Connection,
    ) {
        let Some(shown) = connection.shown.or_else(|| self.name(listener, &connection)) else {
            // Refused for lack of room: treat it as if it had not come.
            return self.answer(call, Answer::Fail(Errno::CONNABORTED));
        };
        connection.shown = Some(shown);
        match self.write_shown(call, shown) {
            Ok(()) => {}
            // As in the kernel, a caller that passes a bad address loses the connection.
            Err(errno @ (Errno::FAULT | Errno::INVAL)) => return self.answer(call, Answer::Fail(errno)),
            Err(errno) => return self.give_back(call, listener, connection, errno),
        }
        let flags = flags_of(call);
        if flags & SOCK_NONBLOCK == 0 {
            let made_blocking = fcntl_getfl(&connection.socket)
                .and_then(|flags| fcntl_setfl(&connection.socket, flags - OFlags::NONBLOCK));
            if let Err(errno) = made_blocking {
                return self.answer(call, Answer::Fail(errno));
            }
        }
        let close_on_exec = flags & SOCK_CLOEXEC != 0;
        match self.notifier.add_descriptor(call.id, connection.socket.as_fd(), close_on_exec) {
            Ok(number) => {
                self.journal.on_handed_over(&connection);
                let socket = connection.socket.as_fd();
                if self.rules.has_optional && is_guarded(socket, &self.rules) {
                    self.after_wait.watch(socket, connection.sender.get(), Some((call.thread, number)));
                }
                // Close ours before the answer: when the program closes its descriptor, the connection must
                // be closed.
                drop(connection);
                self.answer(call, Answer::Value(number.into()));
            }
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                // As in the kernel's own queue, the connection stays until the program has a free descriptor.
                self.ready.put_back(listener.address, connection);
                self.answer(call, Answer::Fail(errno));
            }
            Err(errno) => self.give_back(call, listener, connection, errno),
        }
    }

    /// A caller that has not been killed must not wait forever.
    fn give_back(
        &mut self,
        call: &Notification,
        listener: &Arc<SupervisedListener>,
        connection: Connection,
        errno: Errno,
    ) {
        self.answer(call, Answer::Fail(errno));
        self.ready.put_back(listener.address, connection);
        if self.parked.at(listener.address).is_none() {
            self.wake(listener.address);
        }
    }

    fn write_shown(&self, call: &Notification, shown: SocketAddr) -> Result<(), Errno> {
        match call.args[1] {
            0 => Ok(()), // a null pointer: the caller doesn't want the address
            address => write_address(&self.notifier, call, [address, call.args[2]], shown),
        }
    }

    /// Whom the program is to see, remembered for getpeername(); `None` if that can't be.
    fn name(&mut self, listener: &SupervisedListener, connection: &Connection) -> Option<SocketAddr> {
        let sender = match as_seen_by(ClientAddr::new(connection.sender.get()), listener.is_v6) {
            Shown::As(sender) => sender,
            Shown::NotShowable => connection.sender.get(),
        };
        let Some((client, destination)) = connection.client else { return Some(sender) };
        let shown = match as_seen_by(client, listener.is_v6) {
            Shown::As(shown) => shown,
            Shown::NotShowable => {
                self.journal.on_not_showable(client, connection.sender);
                return Some(sender);
            }
        };
        let destination = match as_seen_by(ClientAddr::new(destination), listener.is_v6) {
            Shown::As(destination) => Some(destination),
            Shown::NotShowable => None,
        };
        let cookie = socket_cookie(&connection.socket).ok()?;
        let tuple = ConnectionTuple::of(connection.socket.as_fd(), connection.sender.get()).ok()?;
        let name = Name { client: shown, destination, tuple };
        match self.names.insert(cookie, &name, &mut self.census) {
            Ok(Remembered::InRoom) => {}
            Ok(Remembered::InPlaceOfAnother) => self.journal.on_forgotten(OLDEST_FORGOTTEN),
            Err(_) => {
                self.journal.on_refused(&Refused::NoRoom { sender: connection.sender });
                return None;
            }
        }
        Some(shown)
    }
}
