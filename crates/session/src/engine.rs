//! What a running program can change about its engines.
//!
//! An engine serves the sessions of its listeners. A reload, a drain or an upgrade is a series of these calls, computed
//! from the difference of two plans; nothing else changes an engine that runs.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use truepeer_sys::CallError;

use crate::listening::ListenError;
use crate::settings::ListenerId;
use crate::supervision::Health;

/// The owner's side of an engine. Dropping an engine stops it: open connections are reset.
pub trait Engine {
    /// What the sessions of a listener follow.
    type Rules;

    /// Opens a listener, or takes those of its sockets that are in `inherited`. Returns where it listens, with the port that
    /// the kernel chose for port 0.
    ///
    /// # Errors
    /// The listener is not open then, in no worker.
    fn open(
        &mut self,
        id: ListenerId,
        rules: Self::Rules,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError>;

    /// Closes a listener. Connections that the kernel has completed are still served, and so are open sessions, to their
    /// end; UDP flows end, because replies leave from the listener's own socket. When this returns, the address is free.
    ///
    /// # Errors
    /// There is no such listener.
    fn close(&mut self, id: ListenerId) -> Result<(), EngineError>;

    /// Replaces a listener's rules as a whole, for new sessions. Sessions and flows that are open keep theirs. The policy
    /// that holds when a datagram comes decides whether its sender may send it.
    ///
    /// # Errors
    /// There is no such listener, or the rules need other sockets: close the listener and open it anew.
    fn set_rules(&mut self, id: ListenerId, rules: Self::Rules) -> Result<(), EngineError>;

    /// Takes no more connections and flows, on any listener. The engine's workers end with their last session.
    fn drain(&mut self);

    /// What the engine serves now.
    fn snapshot(&self) -> Snapshot;

    /// Whether it serves, and if not, why.
    fn health(&self) -> Health;
}

/// What an engine serves at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its open listeners, by id.
    pub listeners: Vec<ListenerSnapshot>,
}

/// One listener, at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSnapshot {
    /// Which.
    pub id: ListenerId,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Its open connections and flows.
    pub open: usize,
}

/// An engine can't start, or can't do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A listening socket can't be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A worker can't get what every worker needs.
    #[error("can't start a worker: {0}")]
    Worker(#[from] CallError),
    /// The system refuses one more thread.
    #[error("can't start a worker thread: {0}")]
    Thread(std::io::Error),
    /// A worker has ended.
    #[error("a worker has ended")]
    WorkerGone,
    /// The id is another listener's.
    #[error("listener {0} is open already")]
    IsOpen(ListenerId),
    /// No listener has the id.
    #[error("listener {0} is not open")]
    NotOpen(ListenerId),
    /// Rules can't be swapped on the sockets that are open.
    #[error("listener {id} would need other sockets for another {what}: close it and open it anew")]
    OtherSockets {
        /// Which.
        id: ListenerId,
        /// What differs.
        what: &'static str,
    },
}
