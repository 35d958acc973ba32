//! One worker's view of a listener.

use std::sync::Arc;

use truepeer_session::counters::Shard;
use truepeer_session::deadlines::QueueId;
use truepeer_session::{ListenerId, ListenerRules};

/// A listener with the rules for its new sessions. A session keeps the rules that it started with, so new
/// rules make another `Listener`.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) rules: Arc<ListenerRules>,
    pub(crate) shard: Arc<Shard>,
    pub(crate) waits: Waits,
}

/// The deadline queues of its sessions.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) header: QueueId,
    pub(crate) header_wait: QueueId,
    pub(crate) header_rest: QueueId,
    pub(crate) connect: QueueId,
    pub(crate) idle: Option<QueueId>,
}
