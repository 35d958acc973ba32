//! The changes that a running program can make to its engines.
//!
//! An engine serves the sessions of its listeners. A reload, a drain or an upgrade is a series of these
//! calls, computed from the difference of two plans. Nothing else changes a running engine.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use truepeer_sys::CallError;

use crate::listening::ListenError;
use crate::registry::SessionList;
use crate::settings::ListenerId;
use crate::supervision::Health;

/// The owner's side of an engine. Dropping an engine stops it: open connections are reset.
pub trait Engine {
    /// The rules for a listener's sessions.
    type Rules;

    /// Opens a listener, using its sockets in `inherited` if there are any. Returns its address, with the
    /// port that the kernel chose for port 0.
    ///
    /// # Errors
    /// The listener is then open in no worker.
    fn open(
        &mut self,
        id: ListenerId,
        rules: Self::Rules,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Vec<SocketAddr>, EngineError>;

    /// Closes a listener. Connections that the kernel has completed and open sessions are served to their
    /// end. UDP flows end, because replies leave from the listener's own socket. When this returns, the
    /// address is free.
    ///
    /// # Errors
    /// The listener doesn't exist.
    fn close(&mut self, id: ListenerId) -> Result<(), EngineError>;

    /// Replaces all rules of a listener for new sessions. Open sessions and flows keep theirs. For datagrams
    /// of open flows, too, the new policy decides whether the sender is admitted.
    ///
    /// # Errors
    /// The listener doesn't exist, or the rules need other sockets: close the listener and open it again.
    fn set_rules(&mut self, id: ListenerId, rules: Self::Rules) -> Result<(), EngineError>;

    /// Duplicates of a listener's sockets, for another process that serves on them, in an order that
    /// [`Self::open`] understands.
    ///
    /// # Errors
    /// The listener doesn't exist, or descriptors ran out.
    fn sockets(&self, id: ListenerId) -> Result<Vec<OwnedFd>, EngineError>;

    /// Stops accepting connections and opening flows on all listeners. Each worker ends with its last
    /// session.
    fn drain(&mut self);

    /// What the engine serves at this moment.
    fn snapshot(&self) -> Snapshot;

    /// Its open sessions, for other threads.
    fn sessions(&self) -> Arc<dyn SessionList>;

    /// Whether it serves, and if not, why.
    fn health(&self) -> Health;
}

/// What an engine serves at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its open listeners, by id.
    pub listeners: Vec<ListenerSnapshot>,
}

/// One listener at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSnapshot {
    /// Its id.
    pub id: ListenerId,
    /// Its address.
    pub addresses: Vec<SocketAddr>,
    /// Its open connections and flows.
    pub open: usize,
}

/// Why an engine can't start, or can't make a change.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A listening socket can't be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A worker lacks a resource.
    #[error("can't start a worker: {0}")]
    Worker(#[from] CallError),
    /// The system refuses another thread.
    #[error("can't start a worker thread: {0}")]
    Thread(std::io::Error),
    /// A worker has ended.
    #[error("a worker has ended")]
    WorkerGone,
    /// Another listener has this id.
    #[error("listener {0} is open already")]
    IsOpen(ListenerId),
    /// No listener has this id.
    #[error("listener {0} is not open")]
    NotOpen(ListenerId),
    /// The rules need other sockets.
    #[error("listener {id} needs other sockets to change its {what}: close it and open it again")]
    OtherSockets {
        /// The listener.
        id: ListenerId,
        /// The setting that differs.
        what: &'static str,
    },
}
