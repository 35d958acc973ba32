//! Tells the service manager what this process does (sd_notify(3)), and leaves listening sockets in its
//! store, where they survive a restart. Without `NOTIFY_SOCKET` nothing is sent.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use tracing::warn;

use truepeer_config::plan::ListenerKey;
use truepeer_config::spec::Protocol;

/// The service manager.
pub(super) struct Manager {
    /// How often it wants to hear from this process.
    watchdog: Option<Duration>,
    next_ping: Option<Instant>,
    /// What this process has put into its store.
    stored: Vec<Stored>,
}

/// The sockets of one listener in the store.
#[derive(Debug, PartialEq, Eq)]
struct Stored {
    name: String,
    /// A listener that is closed and opened again has other sockets.
    inodes: Vec<u64>,
}

/// How long the service manager may take to close sockets of its store.
const LETTING_GO: Duration = Duration::from_secs(2);

impl Manager {
    pub(super) fn new() -> Self {
        // Twice in the time that it allows.
        let watchdog = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        let next_ping = watchdog.map(|watchdog| Instant::now() + watchdog);
        Self { watchdog, next_ping, stored: Vec::new() }
    }

    /// Everything serves. `MAINPID` matters after an upgrade: the process that was started first is about to
    /// end.
    pub(super) fn ready(&self, status: &str) {
        tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Status(status), NotifyState::Ready]);
    }

    /// A reload has begun; [`Self::ready`] ends it, whatever came of it.
    pub(super) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(error) => warn!("the service manager is not told of the reload: {error}"),
        }
    }

    /// Another process is the main one.
    pub(super) fn hand_over(&self, process: u32) {
        tell(&[NotifyState::MainPid(process)]);
    }

    pub(super) fn stopping(&self, status: &str) {
        tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// When the next [`Self::ping`] is due.
    pub(super) fn next_ping(&self) -> Option<Instant> {
        self.next_ping
    }

    /// This process is alive.
    pub(super) fn ping(&mut self, now: Instant) {
        if self.next_ping.is_some_and(|due| due <= now) {
            tell(&[NotifyState::Watchdog]);
            self.next_ping = self.watchdog.map(|watchdog| now + watchdog);
        }
    }

    /// Leaves the listeners' sockets with the service manager, and takes back those of closed ones.
    pub(super) fn store(&mut self, listeners: Vec<(ListenerKey, Vec<OwnedFd>)>) {
        let wanted: Vec<_> = listeners.iter().map(|(key, sockets)| Stored::of(key, sockets)).collect();
        for gone in self.stored.extract_if(.., |stored| !wanted.contains(stored)) {
            remove(&gone.name);
        }
        for ((_, sockets), wanted) in listeners.iter().zip(wanted) {
            if self.stored.contains(&wanted) {
                continue;
            }
            let sockets: Vec<_> = sockets.iter().map(OwnedFd::as_fd).collect();
            let state = [NotifyState::FdStore, NotifyState::FdName(&wanted.name)];
            match sd_notify::notify_with_fds(&state, &sockets) {
                Ok(()) => self.stored.push(wanted),
                Err(error) => {
                    warn!("the service manager doesn't keep the sockets of {}: {error}", wanted.name)
                }
            }
        }
    }
}

impl Stored {
    fn of(key: &ListenerKey, sockets: &[OwnedFd]) -> Self {
        let inode = |socket| rustix::fs::fstat(socket).map(|status| status.st_ino).unwrap_or_default();
        Self { name: name(key.protocol, key.address), inodes: sockets.iter().map(inode).collect() }
    }
}

/// Takes sockets back from the store, and waits until the service manager has closed them: until then, nobody
/// can listen on addresses that conflict with theirs. Returns whether there is a service manager.
pub(super) fn take_back(sockets: &[(Protocol, SocketAddr)]) -> bool {
    if sockets.is_empty() || !is_there() {
        return false;
    }
    sockets.iter().for_each(|(protocol, address)| remove(&name(*protocol, *address)));
    if let Err(error) = wait_for_manager() {
        warn!("the service manager may still have sockets open: {error}");
    }
    true
}

pub(super) fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Takes the sockets of a name out of the store.
pub(super) fn remove(name: &str) {
    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// The service manager closes the pipe when it has carried out all that was sent before (`BARRIER=1`,
/// sd_notify(3)).
fn wait_for_manager() -> std::io::Result<()> {
    let (closed, theirs) = std::io::pipe()?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
    drop(theirs);
    let until = Timespec::try_from(LETTING_GO).map_err(std::io::Error::other)?;
    match poll(&mut [PollFd::new(&closed, PollFlags::empty())], Some(&until))? {
        0 => Err(std::io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// The name of a listener's sockets in the store. FDNAME allows no colon.
pub(super) fn name(protocol: Protocol, address: SocketAddr) -> String {
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    format!("{protocol}-{}-{}", address.ip().to_string().replace(':', "."), address.port())
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("the service manager can't be told: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_colon() {
        let name = |protocol, address: &str| name(protocol, address.parse().unwrap());
        assert_eq!(name(Protocol::Tcp, "127.0.0.1:8443"), "tcp-127.0.0.1-8443");
        assert_eq!(name(Protocol::Udp, "[2001:db8::1]:53"), "udp-2001.db8..1-53");
    }
}
