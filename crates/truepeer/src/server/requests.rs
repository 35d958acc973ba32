//! Requests of other threads to the server's thread. Only the server's thread changes what runs.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::anyhow;
use truepeer_relay::udp::moving::MovingFlow;

use super::signals::Bell;
use truepeer_config::plan::ListenerKey;

/// A request, and where to send the answer.
pub(super) enum Request {
    /// Load the source again.
    Reload(Sender<Result<String, String>>),
    /// Others are banned now.
    Banned,
    /// An upgrade begins: duplicate all listening sockets.
    Offer(Sender<anyhow::Result<Offered>>),
    /// Read no datagrams from now on, and describe the flows.
    Flows(Sender<anyhow::Result<Vec<(ListenerKey, MovingFlow)>>>),
    /// The upgrade has failed: go on.
    Keep,
    /// The new process serves: let go, and drain.
    HandOver(HandedOver, Sender<()>),
}

/// What the old process has.
pub(super) struct Offered {
    pub(super) sockets: Vec<OwnedFd>,
    /// The names of attachments.
    pub(super) attached: Vec<String>,
}

/// What the new process has.
pub(super) struct HandedOver {
    pub(super) pid: u32,
    /// UDP listeners.
    pub(super) udp: Vec<SocketAddr>,
    /// The names of attachments.
    pub(super) attached: Vec<String>,
}

/// The sending end.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    queue: Sender<Request>,
    bell: Bell,
}

impl Requests {
    /// Both ends. `bell` announces requests.
    pub(super) fn new(bell: Bell) -> (Self, Receiver<Request>) {
        let (queue, requests) = channel();
        (Self { queue, bell }, requests)
    }

    fn post(&self, request: Request) {
        // An error means that the server has ended. `ask` then gets no answer and reports it.
        let _ = self.queue.send(request);
        self.bell.ring();
    }

    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> anyhow::Result<T> {
        let (answer, answered) = channel();
        self.post(request(answer));
        answered.recv().map_err(|_| anyhow!("truepeer has ended"))
    }

    pub(super) fn reload(&self) -> Result<String, String> {
        self.ask(Request::Reload).unwrap_or_else(|failure| Err(format!("{failure:#}")))
    }

    pub(super) fn on_banned(&self) {
        self.post(Request::Banned);
    }

    pub(super) fn offer(&self) -> anyhow::Result<Offered> {
        self.ask(Request::Offer)?
    }

    pub(super) fn flows(&self) -> anyhow::Result<Vec<(ListenerKey, MovingFlow)>> {
        self.ask(Request::Flows)?
    }

    pub(super) fn keep(&self) {
        self.post(Request::Keep);
    }

    pub(super) fn hand_over(&self, to: HandedOver) -> anyhow::Result<()> {
        self.ask(|answer| Request::HandOver(to, answer))
    }
}
