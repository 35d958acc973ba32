//! From the accepted connection to the backend's: header, route, connection.

use truepeer_policy::{HeaderRule, Opening};
use truepeer_proto::Header;
use truepeer_session::{CloseReason, Tags};

use super::super::connecting::{Connecting, Dialling};
use super::super::context::Context;
use super::super::half::End;
use super::super::header::{FirstBytes, HeaderRules, Read};
use super::{Deadline, Session, Stage, Verdict};
use crate::io::{Io, Readiness};

impl<I: Io> Session<I> {
    /// The first deadline: for silence, or for the header.
    pub(super) fn header_deadline(&self, cx: &Context<'_, I>) -> Deadline {
        let times = cx.settings.header_times;
        let may_be_silent = cx.policy.admit(self.sender) == Ok(HeaderRule::Optional);
        if may_be_silent && times.wait < times.timeout { Deadline::HeaderWait } else { Deadline::Header }
    }

    pub(super) fn on_header_timeout(
        &mut self,
        cx: &mut Context<'_, I>,
        downstream: End<I::Socket>,
        first: FirstBytes,
    ) -> Verdict {
        let reader = match cx.policy.admit(self.sender) {
            Ok(rule) => cx.settings.header_reader(rule),
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        match reader.on_timeout(first.seen(), cx.now.saturating_duration_since(self.began)) {
            Opening::NoHeader => {
                self.was_silent = true;
                self.open(cx, downstream, None, &[])
            }
            Opening::Refused(error) => Verdict::Close(error.into()),
            // The header started within the time for silence, and gets the rest of the header's time.
            Opening::NeedMore | Opening::Header { .. } => {
                self.stage = Stage::AwaitHeader { downstream, first };
                Verdict::Wait(Deadline::HeaderRest)
            }
        }
    }

    pub(super) fn read_header(&mut self, cx: &mut Context<'_, I>, scratch: &mut [u8]) -> Verdict {
        let Stage::AwaitHeader { mut downstream, mut first } =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Verdict::Wait(Deadline::Unchanged);
        };
        let rule = match cx.policy.admit(self.sender) {
            Ok(HeaderRule::Forbid) => return self.open(cx, downstream, None, &[]),
            Ok(rule) => rule,
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        let rules = HeaderRules {
            reader: cx.settings.header_reader(rule),
            header_bytes: &cx.budgets.header_bytes,
            backlog_bytes: &cx.budgets.backlog_bytes,
        };
        while downstream.ready.readable {
            match first.read(cx.io, &mut downstream, scratch, rules) {
                Read::Opening(Opening::NeedMore, _) => {}
                Read::Opening(Opening::Header { header, consumed }, bytes) => {
                    return self.open(cx, downstream, Some(&header), &bytes[consumed..]);
                }
                Read::Opening(Opening::NoHeader, bytes) => return self.open(cx, downstream, None, bytes),
                Read::Opening(Opening::Refused(error), _) => return Verdict::Close(error.into()),
                Read::OverBudget => return Verdict::Close(CloseReason::OverHeaderBudget),
            }
        }
        self.stage = Stage::AwaitHeader { downstream, first };
        Verdict::Wait(Deadline::Unchanged)
    }

    /// Asks the policy for the destination, and connects.
    fn open(
        &mut self,
        cx: &mut Context<'_, I>,
        downstream: End<I::Socket>,
        header: Option<&Header<'_>>,
        rest: &[u8],
    ) -> Verdict {
        let came_to = || Some(cx.io.local_address(&downstream.socket)?.port());
        let route = match cx.policy.route_at(self.sender, header, came_to) {
            Ok(route) => route,
            Err(refusal) => return Verdict::Close(refusal.into()),
        };
        let rule = cx.policy.senders.rule(self.sender);
        match cx.budgets.count_client(&cx.settings.per_client, &route, rule) {
            Ok(counted) => self.counted = counted.map(Box::new),
            Err(reason) => return Verdict::Close(CloseReason::from(reason)),
        }
        let version = header.map(|header| header.version);
        let header = header.map(|header| cx.policy.senders.without_proof(self.sender, *header));
        self.tags = header.and_then(|header| Tags::of(header.tlvs, &cx.policy.senders));
        let waited = cx.now.saturating_duration_since(self.began);
        cx.journal.on_route(cx.shard, &route, version, waited);
        if let Some(range) = route.special {
            cx.journal.on_special_claim(cx.shard, &route, (self.sender, range), cx.now);
        }
        let dialling = Connecting::dial(cx, downstream, route, header.as_ref(), rest);
        self.adopt(cx, dialling)
    }

    pub(super) fn on_backend_event(
        &mut self,
        cx: &mut Context<'_, I>,
        scratch: &mut [u8],
        event: Readiness,
    ) -> Verdict {
        let Stage::Connecting(connecting) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Verdict::Wait(Deadline::Unchanged);
        };
        let dialling = connecting.on_upstream(cx, event);
        match self.adopt(cx, dialling) {
            Verdict::Wait(Deadline::Idle) => self.work(cx, scratch),
            verdict => verdict,
        }
    }

    /// Enters the stage that connecting led to.
    pub(super) fn adopt(&mut self, cx: &mut Context<'_, I>, dialling: Dialling<I>) -> Verdict {
        match dialling {
            Dialling::Connected(mut relaying, route, took) => {
                if self.was_silent {
                    relaying.await_late_bytes();
                }
                cx.journal.on_connected(cx.shard, took);
                let (up, down) = relaying.delivered_bytes();
                cx.shard.add_bytes(up, down);
                self.route = Some(route);
                self.stage = Stage::Relaying(relaying);
                Verdict::Wait(Deadline::Idle)
            }
            Dialling::Waiting(connecting) => {
                self.stage = Stage::Connecting(connecting);
                Verdict::Wait(Deadline::Connect)
            }
            Dialling::InConflict(connecting) => {
                self.stage = Stage::Connecting(connecting);
                Verdict::Wait(Deadline::ConflictRetry)
            }
            Dialling::WithoutRoute(connecting) => {
                self.stage = Stage::Connecting(connecting);
                Verdict::Wait(Deadline::RouteRetry)
            }
            Dialling::Failed(downstream, reason) => {
                if reason.resets_downstream() {
                    cx.io.reset_when_closed(&downstream.socket);
                }
                Verdict::Close(reason)
            }
        }
    }
}
