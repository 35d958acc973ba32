//! Tells the service manager what this process does (sd_notify(3)), and leaves listening sockets in its store, where
//! they survive a restart. Without `NOTIFY_SOCKET` nothing is sent.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::warn;

use crate::plan::ListenerKey;
use crate::spec::Protocol;

/// The service manager.
pub(super) struct Manager {
    /// How often it wants to hear from this process.
    watchdog: Option<Duration>,
    next_ping: Option<Instant>,
    /// The names of the sockets in its store.
    stored: Vec<String>,
}

impl Manager {
    pub(super) fn new() -> Self {
        // Twice in the time that it allows.
        let watchdog = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        let next_ping = watchdog.map(|watchdog| Instant::now() + watchdog);
        Self { watchdog, next_ping, stored: Vec::new() }
    }

    /// Everything serves. `MAINPID` matters after an upgrade: the process that was started first is about to end.
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
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return;
        }
        let names: Vec<_> = listeners.iter().map(|(key, _)| name(key)).collect();
        for gone in self.stored.extract_if(.., |stored| !names.contains(stored)) {
            tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(&gone)]);
        }
        for ((_, sockets), name) in listeners.iter().zip(names) {
            if self.stored.contains(&name) {
                continue;
            }
            let sockets: Vec<_> = sockets.iter().map(OwnedFd::as_fd).collect();
            let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
            match sd_notify::notify_with_fds(&state, &sockets) {
                Ok(()) => self.stored.push(name),
                Err(error) => warn!("the service manager doesn't keep the sockets of {name}: {error}"),
            }
        }
    }
}

/// FDNAME allows no colon.
fn name(key: &ListenerKey) -> String {
    let protocol = match key.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    let address: SocketAddr = key.address;
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
        let key =
            |protocol, address: &str| ListenerKey { protocol, address: address.parse().unwrap(), copy: 0 };
        assert_eq!(name(&key(Protocol::Tcp, "127.0.0.1:8443")), "tcp-127.0.0.1-8443");
        assert_eq!(name(&key(Protocol::Udp, "[2001:db8::1]:53")), "udp-2001.db8..1-53");
    }
}
