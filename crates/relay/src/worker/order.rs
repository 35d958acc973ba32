//! The orders that a worker gets from other threads.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use truepeer_session::budget::Permit;
use truepeer_session::registry::SessionOrder;
use truepeer_session::{ListenerId, ListenerRules};
use truepeer_splice::Watched;
use truepeer_sys::CallError;

use crate::listener_sockets::ListenerSockets;
use crate::udp::moving::MovingFlow;

/// An order. If it has a `done`, the worker answers on it after carrying it out.
#[derive(Debug)]
pub(crate) enum Order {
    /// Open one more listener.
    Open {
        id: ListenerId,
        rules: Arc<ListenerRules>,
        sockets: ListenerSockets,
        done: Sender<Result<(), CallError>>,
    },
    /// Accept nothing more for this listener, and close its sockets.
    Close { id: ListenerId, done: Sender<()> },
    /// New sessions of the listener use these rules.
    SetRules { id: ListenerId, rules: Arc<ListenerRules>, done: Sender<()> },
    /// Serve a connection that a busier worker has accepted.
    Adopt { id: ListenerId, rules: Arc<ListenerRules>, connection: AcceptedConnection },
    /// Move flows from or to another process.
    Flows(FlowsOrder),
    /// List or end sessions, for the operator.
    Sessions(SessionOrder),
    /// Watch a session that has left user space in another process.
    Left(Watched),
    /// Leave to another process the sessions that have left user space, also those that do so later.
    ReleaseSessions { done: Sender<()> },
    /// Find out which backends have lost their connections.
    ProbeBackends,
    /// Take nothing more, and end with the last session.
    Drain,
    /// End.
    Stop,
    /// Block until the other end is dropped.
    #[cfg(test)]
    Hold(std::sync::mpsc::Receiver<()>),
    /// Break the epoll.
    #[cfg(test)]
    Break,
}

impl From<SessionOrder> for Order {
    fn from(order: SessionOrder) -> Self {
        Self::Sessions(order)
    }
}

/// An order about all flows of a worker, see [`crate::udp::moving`].
#[derive(Debug)]
pub(crate) enum FlowsOrder {
    Pause {
        done: Sender<Result<(), CallError>>,
    },
    Resume {
        done: Sender<Result<(), CallError>>,
    },
    Describe {
        id: ListenerId,
        done: Sender<Result<Vec<MovingFlow>, CallError>>,
    },
    Release {
        id: ListenerId,
        done: Sender<Result<(), CallError>>,
    },
    Adopt {
        flows: Vec<MovingFlow>,
        done: Sender<usize>,
    },
    /// Read nothing more from senders. Replies still pass.
    ReadNoMore,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) sender: SocketAddr,
    pub(crate) permit: Permit,
}
