//! Sockets that this process did not open: from the service manager, or from an old process.

use std::os::fd::OwnedFd;

use truepeer_sys::inherit::PassedSockets;

use super::sockets;

/// Sockets that nobody has taken yet.
#[derive(Debug)]
pub(super) struct Inherited(Vec<OwnedFd>);

impl Inherited {
    /// Those of the service manager. A socket of a socket unit that is also in the manager's store comes
    /// once.
    pub(super) fn take() -> anyhow::Result<Self> {
        let mut sockets = PassedSockets::take()?.into_listening();
        let mut seen = Vec::new();
        sockets.retain(|socket| {
            let Ok(status) = rustix::fs::fstat(socket) else { return true };
            let is_new = !seen.contains(&status.st_ino);
            seen.push(status.st_ino);
            is_new
        });
        Ok(Self(sockets))
    }

    pub(super) fn sockets(&mut self) -> &mut Vec<OwnedFd> {
        &mut self.0
    }

    /// Warns about sockets that no listener has taken, and closes them.
    pub(super) fn warn_of_unasked(self) {
        sockets::warn_of_unasked(&self.0);
    }
}
