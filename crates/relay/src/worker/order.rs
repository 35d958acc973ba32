//! What a worker can be told by other threads.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use truepeer_session::budget::Permit;
use truepeer_session::{ListenerId, ListenerRules};
use truepeer_sys::CallError;

use crate::entrances::Entrances;

/// An order. Where one has a `done`, it is answered when it has been carried out.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take connections and datagrams for one more listener.
    Open {
        id: ListenerId,
        rules: Arc<ListenerRules>,
        entrances: Entrances,
        done: Sender<Result<(), CallError>>,
    },
    /// Take no more for this listener, and close its sockets.
    Close { id: ListenerId, done: Sender<()> },
    /// New sessions of the listener follow these rules.
    SetRules { id: ListenerId, rules: Arc<ListenerRules>, done: Sender<()> },
    /// Serve a connection that a busier worker has accepted.
    Adopt { id: ListenerId, rules: Arc<ListenerRules>, connection: AcceptedConnection },
    /// Take nothing more, and end with the last session.
    Drain,
    /// End.
    Stop,
    /// Do nothing until the other end is dropped.
    #[cfg(test)]
    Hold(std::sync::mpsc::Receiver<()>),
    /// Lose epoll, as no worker should.
    #[cfg(test)]
    Break,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) sender: SocketAddr,
    pub(crate) permit: Permit,
}
