//! The arguments of a session's turn.

use std::time::Instant;

use truepeer_policy::Policy;
use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Shard;
use truepeer_session::settings::ListenerSettings;

use crate::io::Token;

/// The user data of a session's two sockets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens {
    pub(crate) downstream: Token,
    pub(crate) upstream: Token,
}

/// The worker's objects that a session uses during its turn.
pub(crate) struct Context<'a, I> {
    pub(crate) io: &'a mut I,
    pub(crate) tokens: Tokens,
    pub(crate) settings: &'a ListenerSettings,
    pub(crate) policy: &'a Policy,
    pub(crate) budgets: &'a Budgets,
    pub(crate) journal: &'a Journal,
    pub(crate) shard: &'a Shard,
    pub(crate) now: Instant,
}
