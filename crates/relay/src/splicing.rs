//! The kernel's programs, as [`Offload`] for TCP sessions. docs/internals/splice.md tells how they work.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use truepeer_session::connect_as::{ConnectError, Upstream, connect_as};
use truepeer_splice::{Connections, Grace, Reason, Sockets, Splices, Stage, Sweeper, Watched, Ways, arm};
use truepeer_sys::{repair, socket};

use crate::kernel_socket::KernelSocket;
use crate::offload::{Flow, Offload};
use crate::udp::FlowOffload;

/// How often the kernel may choose a port that a session in the tables uses.
const PORTS: usize = 16;

/// The kernel's programs for sessions and for flows. Err: why none leaves.
#[derive(Debug, Clone)]
pub struct Offloads {
    /// For TCP sessions.
    pub sessions: Result<Splicing, Reason>,
    /// For UDP flows.
    pub flows: Result<FlowOffload, Reason>,
}

impl Default for Offloads {
    fn default() -> Self {
        Self { sessions: Err(Reason::NotLoaded), flows: Err(Reason::NotLoaded) }
    }
}

/// The kernel's programs, for all workers.
#[derive(Clone)]
pub struct Splicing {
    splices: Arc<Splices>,
    grace: Grace,
    ways: Arc<Ways>,
    /// Why sessions stay while another process has the tables.
    while_guest: Reason,
    /// Set when the relay starts.
    sweeper: Arc<OnceLock<Sweeper>>,
}

impl std::fmt::Debug for Splicing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Splicing")
    }
}

impl Splicing {
    /// With a thread that waits for grace periods. `while_guest`: why sessions stay while another process has
    /// the tables.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(splices: Arc<Splices>, ways: Arc<Ways>, while_guest: Reason) -> std::io::Result<Self> {
        Ok(Self { splices, ways, while_guest, grace: Grace::start()?, sweeper: Arc::default() })
    }

    /// Starts the thread that cleans up after flows. It passes flows of another process to `hand_out`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn sweep(&self, hand_out: impl Fn(Vec<Watched>) + Send + 'static) -> std::io::Result<()> {
        let sweeper = Sweeper::start(Arc::clone(&self.splices), Arc::clone(&self.ways), hand_out)?;
        // Err: a sweeper runs already; this one ends.
        let _ = self.sweeper.set(sweeper);
        Ok(())
    }

    /// Lets another process have the tables.
    pub(crate) fn release(&self) {
        self.splices.release();
    }

    /// Like [`connect_as`], but avoids the tuples of sessions that have left user space, which the kernel
    /// doesn't know.
    ///
    /// # Errors
    /// Those of [`connect_as`].
    pub(crate) fn connect(&self, upstream: &Upstream) -> Result<OwnedFd, ConnectError> {
        let is_in_use = |own| self.splices.are_in_use(upstream.backend, own);
        if let Some(source) = upstream.source.filter(|source| source.port() != 0) {
            return if is_in_use(source) { Err(ConnectError::TupleInUse) } else { connect_as(upstream) };
        }
        // Keep these open, or the kernel would choose the same ports again.
        let mut unusable = Vec::new();
        for _ in 0..PORTS {
            let socket = connect_as(upstream)?;
            match socket::local_address(socket.as_fd()) {
                Ok(own) if is_in_use(own) => unusable.push(socket),
                _ => return Ok(socket),
            }
        }
        Err(ConnectError::TupleInUse)
    }
}

impl Offload for Splicing {
    type Socket = KernelSocket;
    type Armed = Sockets;
    type Flow = Watched;

    fn arm(&self, sockets: [&KernelSocket; 2], age: Duration) -> Result<Sockets, Reason> {
        if self.splices.is_guest() {
            return Err(self.while_guest);
        }
        if !repair::is_possible() {
            return Err(Reason::KeeperGone);
        }
        let sockets = sockets.map(AsFd::as_fd);
        let armed = arm(&self.splices, &self.grace, &self.ways, sockets).map_err(|stays| stays.reason())?;
        armed.set_age(age);
        for socket in sockets {
            // Before Linux 5.14: the window may widen, and the cut waits longer.
            let _ = repair::set_receive_buffer_fixed(socket, true);
        }
        Ok(armed)
    }

    fn connections<'a>(armed: &'a mut Sockets, sockets: [&'a KernelSocket; 2]) -> impl Connections + 'a {
        armed.with(sockets.map(AsFd::as_fd))
    }

    fn stream_bytes(armed: &Sockets) -> u64 {
        armed.stream_bytes()
    }

    /// While offers were held, a peer may have been told of a narrower window than its socket remembers, so
    /// the socket would not tell it of the wider one.
    fn give_up(armed: Sockets, sockets: [&KernelSocket; 2], was_held: bool) {
        let sockets = sockets.map(AsFd::as_fd);
        for socket in sockets {
            // As before.
            let _ = repair::set_receive_buffer_fixed(socket, false);
        }
        drop(armed);
        if was_held {
            // If it fails, the peers ask by themselves, only later.
            let _ = repair::ask_peers(sockets);
        }
    }

    fn release(armed: Sockets, sockets: [KernelSocket; 2]) -> Watched {
        armed.offload(sockets.each_ref().map(AsFd::as_fd))
    }

    fn can_ask(&self) -> bool {
        repair::is_possible()
    }

    fn ask(&self, flow: &Watched, side: usize, mark: u32) {
        if let Some(sweeper) = self.sweeper.get() {
            sweeper.ask(flow.question(side), if side == 1 { mark } else { 0 });
        }
    }

    fn reset(&self, flow: Watched) {
        let removed = flow.remove();
        if let Some(sweeper) = self.sweeper.get() {
            sweeper.reset(removed);
        }
    }
}

impl Flow for Watched {
    fn stage(&self) -> Stage {
        self.stage()
    }

    fn bytes(&self) -> [u64; 2] {
        self.bytes()
    }

    fn segments(&self) -> [u64; 2] {
        self.segments()
    }

    fn reset_by(&self) -> Option<usize> {
        self.reset_by()
    }

    fn has_lost_its_way(&self) -> bool {
        self.has_lost_its_way()
    }
}
