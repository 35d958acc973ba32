//! A listener as one worker has it.

use std::sync::Arc;

use truepeer_session::counters::Shard;
use truepeer_session::deadlines::QueueId;
use truepeer_session::{ListenerId, ListenerRules};

/// A listener with the rules that hold for its new sessions. A session keeps the one that it began with, so new rules are
/// another `Listener`.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) rules: Arc<ListenerRules>,
    pub(crate) shard: Arc<Shard>,
    pub(crate) waits: Waits,
}

/// The queues of its sessions' deadlines.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) header: QueueId,
    pub(crate) header_wait: QueueId,
    pub(crate) header_rest: QueueId,
    pub(crate) connect: QueueId,
    pub(crate) idle: Option<QueueId>,
}
