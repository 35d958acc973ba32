//! Sessions that left user space before this process knew them: the kernel made them, or another process
//! handed them over.

use std::time::{Duration, Instant};

use tracing::debug;
use truepeer_policy::{BackendAddr, ClientAddr, OnConflict, Origin, Route, SenderAddr};
use truepeer_proto::Header;
use truepeer_session::counters::Counter;
use truepeer_splice::Watched;

use super::super::context::Context;
use super::super::left::Left;
use super::{Deadline, Session, Stage, Verdict};

impl<S, P> Session<S, P> {
    /// A session that the kernel has made: it has no socket here. [`Self::judge`] comes next.
    pub(crate) fn made_by_kernel(watched: Watched, sender: SenderAddr, now: Instant) -> Self {
        Self::at(Stage::Left(Box::new(Left::new(watched, (0, 0), now))), sender, now, None)
    }

    /// A session that has left user space in another process, which is gone or hands over.
    pub(crate) fn adopt_left(watched: Watched, now: Instant) -> Self {
        let [down, up] = watched.connections();
        let client = ClientAddr::new(up.own);
        let route = Route {
            client,
            origin: Origin::Header,
            backend: BackendAddr::new(up.peer),
            source: Some(up.own),
            on_conflict: OnConflict::Refuse,
            send_proxy: None,
            destination: None,
            special: None,
        };
        let [bytes_up, bytes_down] = watched.bytes();
        let began = now.checked_sub(watched.age()).unwrap_or(now);
        let sender = SenderAddr::new(down.peer);
        // The other process has counted the bytes so far.
        let left = Left::new(watched, (bytes_up, bytes_down), now);
        Self { route: Some(Box::new(route)), ..Self::at(Stage::Left(Box::new(left)), sender, began, None) }
    }

    /// Judges a session that the kernel has made by the rules, because the programs' lists may be older. A
    /// refused one is closed.
    pub(crate) fn judge<I>(&mut self, cx: &mut Context<'_, I>, header: &Header<'_>) -> Verdict {
        let route = match cx.policy.route(self.sender, Some(header)) {
            Ok(route) => route,
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        let rule = cx.policy.senders.rule(self.sender);
        match cx.budgets.count_client(&cx.settings.per_client, &route, rule) {
            Ok(counted) => self.counted = counted.map(Box::new),
            Err(reason) => return Verdict::Close(reason.into()),
        }
        cx.journal.on_route(cx.shard, &route, Some(header.version), Duration::ZERO);
        if let Some(range) = route.special {
            cx.journal.on_special_claim(cx.shard, &route, (self.sender, range), cx.now);
        }
        cx.journal.on_connected(cx.shard, Duration::ZERO);
        cx.shard.count(Counter::Spliced);
        cx.shard.count(Counter::MadeByKernel);
        debug!("the kernel has made a session");
        self.route = Some(Box::new(route));
        Verdict::Wait(Deadline::Left)
    }
}
