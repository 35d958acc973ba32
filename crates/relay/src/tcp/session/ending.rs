//! How a session leaves this process: with its connections, or without them.

use tracing::debug;
use truepeer_session::counters::Counter;
use truepeer_session::{CloseReason, Ended};

use super::super::context::Context;
use super::super::left::Left;
use super::{Deadline, Session, Stage, Verdict};
use crate::io::{FlowOf, Io};
use crate::offload::{Flow as _, Offload as _};

impl<I: Io> Session<I> {
    /// Makes the close of all connections before relaying a reset.
    fn reset_early(&self, io: &mut I) {
        match &self.stage {
            Stage::AwaitHeader { downstream, .. } => io.reset_when_closed(&downstream.socket),
            Stage::Connecting(connecting) => connecting.reset(io),
            Stage::Relaying(_) | Stage::Left(_) | Stage::Over => {}
        }
    }

    /// The session's sockets close silently; the kernel translates its packets.
    pub(super) fn release(&mut self, cx: &mut Context<'_, I>) -> Verdict {
        if let Stage::Relaying(relaying) = std::mem::replace(&mut self.stage, Stage::Over) {
            let before = relaying.delivered_bytes();
            if let Some(flow) = relaying.release() {
                cx.shard.count(Counter::Spliced);
                let client = self.client().map(tracing::field::display);
                debug!(client, "a session has left user space");
                self.stage = Stage::Left(Box::new(Left::new(flow, before, cx.now)));
                self.permit = None;
            }
        }
        Verdict::Wait(Deadline::Left { moves: true })
    }

    /// Ends the flow of a session that has left user space, unless it has ended by itself. Returns its bytes.
    fn end_left(&mut self, cx: &mut Context<'_, I>, reason: &CloseReason) -> (u64, u64) {
        let Stage::Left(mut left) = std::mem::replace(&mut self.stage, Stage::Over) else { return (0, 0) };
        let (up, down) = left.uncounted_bytes();
        cx.shard.add_bytes(up, down);
        let bytes = left.delivered_bytes();
        let by_itself = matches!(
            reason,
            CloseReason::Finished | CloseReason::ResetByClient | CloseReason::ResetByBackend
        );
        if !by_itself || left.is_abandoned {
            reset(cx.io, left.into_flow());
        }
        bytes
    }

    /// Ends a session after its cut. The sockets don't know the numbers that their peers expect, so these
    /// would not believe their resets: the sweeper sends them. Returns the session's bytes.
    fn end_cut(&mut self, io: &I) -> (u64, u64) {
        let Stage::Relaying(relaying) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return (0, 0);
        };
        let bytes = relaying.delivered_bytes();
        let Some(flow) = relaying.release() else { return bytes };
        let [up, down] = flow.bytes();
        reset(io, flow);
        (up, down)
    }

    /// The last turn: resets or cuts the connections, counts and logs. The sockets close when the session is
    /// dropped.
    pub(crate) fn close(&mut self, cx: &mut Context<'_, I>, reason: &CloseReason) {
        let (mut bytes_up, mut bytes_down) = (0, 0);
        if matches!(self.stage, Stage::Left(_)) {
            (bytes_up, bytes_down) = self.end_left(cx, reason);
        }
        if matches!(&self.stage, Stage::Relaying(relaying) if relaying.is_cut()) {
            (bytes_up, bytes_down) = self.end_cut(cx.io);
        }
        if let Stage::Relaying(relaying) = &self.stage {
            (bytes_up, bytes_down) = relaying.delivered_bytes();
            match reason {
                // When truepeer ends a stream, that must not look like the sender's own end.
                CloseReason::Header(_)
                | CloseReason::ResetByClient
                | CloseReason::ResetByBackend
                | CloseReason::Stopping
                | CloseReason::EndedByOperator
                | CloseReason::Banned
                | CloseReason::Panicked => {
                    relaying.reset(cx.io);
                }
                _ => relaying.cut(cx.io),
            }
        } else if matches!(reason, CloseReason::Panicked | CloseReason::EndedByOperator | CloseReason::Banned)
        {
            self.reset_early(cx.io);
        }
        let ended = Ended {
            sender: self.sender,
            route: self.route(),
            listener: cx.settings.address,
            bytes_up,
            bytes_down,
            began: self.began,
            tls: None,
            tags: self.tags.as_deref(),
        };
        cx.journal.on_close(cx.shard, &ended, reason, cx.now);
    }
}

/// Resets the peers of a session that has left. Without an offload there is none.
fn reset<I: Io>(io: &I, flow: FlowOf<I>) {
    if let Ok(offload) = io.offload() {
        offload.reset(flow);
    }
}
