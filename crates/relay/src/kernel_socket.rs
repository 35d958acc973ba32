//! A session's socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;

/// A session's socket. A panic that drops it resets the connection: FIN would mean that everything was sent.
#[derive(Debug)]
pub struct KernelSocket(OwnedFd);

impl From<OwnedFd> for KernelSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for KernelSocket {
    fn drop(&mut self) {
        if std::thread::panicking() {
            reset_when_closed(&self.0);
        }
    }
}

/// Makes the close of `socket` send a reset.
pub(crate) fn reset_when_closed(socket: &impl AsFd) {
    // With a linger of 0 s, close() sends a reset (tcp(7)). If setting it fails, it sends FIN.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
