//! The stage in which the session connects to the backend as the client.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use truepeer_policy::Route;
use truepeer_proto::{Header, Tlvs};
use truepeer_session::CloseReason;
use truepeer_session::connect_as::{AfterConflict, ConnectError, Upstream};
use truepeer_session::send_proxy::header_and;
use truepeer_sys::CallError;

use super::context::Context;
use super::half::{Backlog, End};
use super::relaying::Relaying;
use crate::io::{Io, Readiness};

/// A session that is connecting to its backend.
#[derive(Debug)]
pub(crate) struct Connecting<S> {
    downstream: End<S>,
    route: Box<Route>,
    /// The first bytes for the backend.
    first: Backlog,
    attempt: Attempt<S>,
    began: Instant,
}

#[derive(Debug)]
enum Attempt<S> {
    Dialled(End<S>),
    /// No attempt is under way. How often the tuple was in use.
    Failed(u8),
}

/// The result of connecting.
pub(crate) enum Dialling<I: Io> {
    /// After this time.
    Connected(Relaying<I>, Box<Route>, Duration),
    /// In progress.
    Waiting(Connecting<I::Socket>),
    /// Wait until the tuple may be free.
    InConflict(Connecting<I::Socket>),
    /// Wait until there may be a route to the backend.
    WithoutRoute(Connecting<I::Socket>),
    Failed(End<I::Socket>, CloseReason),
}

impl<S> Connecting<S> {
    /// Connects to the backend of `route`; `rest` holds the bytes after the header.
    pub(crate) fn dial<I: Io<Socket = S>>(
        cx: &mut Context<'_, I>,
        downstream: End<S>,
        route: Route,
        header: Option<&Header<'_>>,
        rest: &[u8],
    ) -> Dialling<I> {
        let first = match route.send_proxy {
            None => rest.into(),
            Some(_) => {
                let tlvs = header.map_or(Tlvs::EMPTY, |header| header.tlvs);
                let (local, own) =
                    (|| cx.io.local_address(&downstream.socket), &cx.policy.delivery.send_tlvs);
                match header_and(&route, local, tlvs, own, rest) {
                    Ok(first) => first,
                    Err(error) => return Dialling::Failed(downstream, CloseReason::Unencodable(error)),
                }
            }
        };
        let first = Backlog::of(first, &cx.budgets.backlog_bytes);
        let (route, attempt) = (Box::new(route), Attempt::Failed(0));
        Self { downstream, route, first, attempt, began: cx.now }.attempt(cx)
    }

    /// The session's route.
    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    /// Tries (again) to connect from the client's tuple.
    pub(crate) fn attempt<I: Io<Socket = S>>(mut self, cx: &mut Context<'_, I>) -> Dialling<I> {
        let Attempt::Failed(failures) = self.attempt else { return Dialling::Waiting(self) };
        let may_leave = cx.settings.splice_after.is_some_and(|after| !after.is_marked);
        let path_mtu = may_leave.then(|| cx.io.path_mtu(&self.downstream.socket)).flatten();
        let upstream = Upstream::of(&self.route, cx.settings.mark).through(path_mtu);
        match cx.io.connect(&upstream) {
            Ok(socket) => self.on_dialled(cx, socket),
            Err(error) => match AfterConflict::of(&error, &self.route, failures) {
                Some(AfterConflict::Retry) => {
                    self.attempt = Attempt::Failed(failures + 1);
                    Dialling::InConflict(self)
                }
                Some(AfterConflict::AwaitRoute) if cx.now < self.began + cx.settings.connect_timeout => {
                    Dialling::WithoutRoute(self)
                }
                Some(AfterConflict::AnyPort) => self.attempt_from_any_port(cx, upstream, error),
                Some(AfterConflict::AwaitRoute | AfterConflict::GiveUp) | None => self.fail(error),
            },
        }
    }

    fn attempt_from_any_port<I: Io<Socket = S>>(
        self,
        cx: &mut Context<'_, I>,
        upstream: Upstream,
        conflict: ConnectError,
    ) -> Dialling<I> {
        match cx.io.connect(&upstream.from_any_port()) {
            Ok(socket) => {
                cx.journal.on_port_replaced(cx.shard, &self.route, &conflict, cx.now);
                self.on_dialled(cx, socket)
            }
            Err(error) => self.fail(error),
        }
    }

    fn on_dialled<I: Io<Socket = S>>(mut self, cx: &mut Context<'_, I>, socket: S) -> Dialling<I> {
        if let Err(errno) = cx.io.watch(&socket, cx.tokens.upstream) {
            return Dialling::Failed(self.downstream, CloseReason::Unwatchable(errno));
        }
        let upstream = End { socket, ready: Readiness::default() };
        if self.first.unsent().is_empty() {
            self.attempt = Attempt::Dialled(upstream);
            return Dialling::Waiting(self);
        }
        // On loopback the handshake has finished when connect() returns, so send the first bytes without
        // waiting for an event.
        match cx.io.send(&upstream.socket, self.first.unsent()) {
            Ok(sent) => {
                self.first.count_sent(sent);
                self.connected(upstream, cx.now)
            }
            // Not connected yet: the event will say when.
            Err(Errno::AGAIN | Errno::INTR) => {
                self.attempt = Attempt::Dialled(upstream);
                Dialling::Waiting(self)
            }
            // The kernel reports this error only once: SO_ERROR would say 0 later.
            Err(errno) => self.on_error(upstream, errno, cx.now),
        }
    }

    /// Notes an event of the sender's connection, for the stage Relaying.
    pub(crate) fn note_downstream(&mut self, event: Readiness) {
        self.downstream.ready.merge(event);
    }

    /// An event of the backend's connection: it has answered.
    pub(crate) fn on_upstream<I: Io<Socket = S>>(
        mut self,
        cx: &mut Context<'_, I>,
        event: Readiness,
    ) -> Dialling<I> {
        let mut upstream = match std::mem::replace(&mut self.attempt, Attempt::Failed(0)) {
            Attempt::Dialled(upstream) => upstream,
            attempt @ Attempt::Failed(_) => {
                self.attempt = attempt;
                return Dialling::InConflict(self);
            }
        };
        if let Err(errno) = cx.io.connect_result(&upstream.socket) {
            return self.on_error(upstream, errno, cx.now);
        }
        upstream.ready.merge(event);
        if !upstream.ready.writable {
            self.attempt = Attempt::Dialled(upstream);
            return Dialling::Waiting(self);
        }
        self.connected(upstream, cx.now)
    }

    /// The backend refuses, is unreachable, or has reset.
    fn on_error<I: Io<Socket = S>>(self, mut upstream: End<S>, errno: Errno, now: Instant) -> Dialling<I> {
        if matches!(errno, Errno::CONNRESET | Errno::PIPE) {
            // Linux's tcp_reset(): RESET means that the connection was established, REFUSED that it was not.
            // The bytes that the backend sent before the reset can still be read.
            upstream.ready = Readiness::BROKEN;
            return self.connected(upstream, now);
        }
        self.fail(CallError { call: "connect", errno }.into())
    }

    fn connected<I: Io<Socket = S>>(self, mut upstream: End<S>, now: Instant) -> Dialling<I> {
        upstream.ready.writable = true;
        let took = now.saturating_duration_since(self.began);
        Dialling::Connected(Relaying::new(self.downstream, upstream, self.first), self.route, took)
    }

    fn fail<I: Io<Socket = S>>(self, error: ConnectError) -> Dialling<I> {
        Dialling::Failed(self.downstream, CloseReason::ConnectFailed { route: self.route, error })
    }

    /// Makes the close of both connections a reset.
    pub(crate) fn reset<I: Io<Socket = S>>(&self, io: &mut I) {
        io.reset_when_closed(&self.downstream.socket);
        if let Attempt::Dialled(upstream) = &self.attempt {
            io.reset_when_closed(&upstream.socket);
        }
    }

    /// The backend did not answer in time.
    pub(crate) fn time_out<I: Io<Socket = S>>(self, waited: Duration) -> Dialling<I> {
        Dialling::Failed(self.downstream, CloseReason::ConnectTimeout { route: self.route, waited })
    }
}
