//! Probes of all backends, after the rules for their replies were missing: meanwhile replies left for the
//! clients' own hosts, which reset the backends' connections. The worker's sockets, and the senders of
//! sessions that have left user space, learn of it only when they send something.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::Worker;
use crate::io::Io as _;
use crate::kernel::KernelSocket;
use crate::offload::Offload as _;
use crate::tcp::relaying::Side;

/// How long a connection must be silent to be probed, while probes last: the shortest that TCP_KEEPIDLE
/// takes.
const SILENCE: Duration = Duration::from_secs(1);

/// Each silent connection has sent its probe by then, and has its answer or is left to its own time-outs.
const LASTS: Duration = Duration::from_secs(3);

impl Worker {
    /// Probes the backends of all sessions. A session whose backend answers with a reset ends.
    pub(super) fn probe_backends(&mut self, now: Instant) {
        self.probes_until = Some(now + LASTS);
        self.set_keepalive(true);
        self.ask_backends(now);
    }

    /// Ends the probes when their time is over. Sessions may have left meanwhile, or have moved bytes shortly
    /// before the rules were missing.
    pub(super) fn end_probes_if_due(&mut self, now: Instant) {
        if self.probes_until.is_some_and(|until| now >= until) {
            self.probes_until = None;
            self.set_keepalive(false);
            self.ask_backends(now);
        }
    }

    /// Asks the silent backends of sessions that have left user space. The answer goes to the sender: a reset
    /// if the backend has forgotten the connection.
    fn ask_backends(&mut self, now: Instant) {
        let Ok(offload) = self.kernel.offload() else { return };
        for (_, entry) in self.sessions.between(0, self.sessions.places()) {
            if let Some(flow) = entry.session.silent_flow(SILENCE, now) {
                offload.ask(flow, Side::Upstream as usize, entry.listener.rules.settings.mark);
            }
        }
    }

    fn set_keepalive(&self, probes: bool) {
        for (_, entry) in self.sessions.between(0, self.sessions.places()) {
            if let Some(socket) = entry.session.upstream() {
                // If it fails, the session ends by its own time-outs.
                let _ = set_keepalive(socket, probes);
            }
        }
    }
}

/// Upstream sockets have no keepalive otherwise.
fn set_keepalive(socket: &KernelSocket, probes: bool) -> rustix::io::Result<()> {
    if probes {
        sockopt::set_tcp_keepidle(socket.as_fd(), SILENCE)?;
    }
    sockopt::set_socket_keepalive(socket.as_fd(), probes)
}
