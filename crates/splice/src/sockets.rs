//! [`Connections`] on real sockets.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_keepalive, set_socket_linger};
use truepeer_bpf::{Ended, Flow, Stage, Watched};
use truepeer_sys::repair::{self, Received};
use truepeer_sys::{CallError, socket};

use crate::grace::Ticket;
use crate::{Connections, Grace, Mapping, Pending, Reason, Ways};

/// A session's flow, and the grace periods that it asks for. Dropped before it is
/// [offloaded](Sockets::offload), the session's packets are the kernel's again.
#[derive(Debug)]
pub struct Sockets {
    flow: Flow,
    grace: Grace,
    way: Way,
    ticket: Option<Ticket>,
    /// Of each side, the number from which the kernel counts received bytes ([`repair::Stand`]), once it is
    /// known.
    first_received: [Option<u32>; 2],
    /// Closing the sockets is silent.
    is_silent: bool,
    /// When a look first found the flow reset.
    dead_since: Option<Instant>,
}

/// Tells whether the session's translated packets take the same way as its own packets would.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) ways: Arc<Ways>,
    /// The addresses and ports of both connections.
    pub(crate) ends: [SocketAddr; 4],
    /// How many devices had been lost before the programs met its packets.
    pub(crate) losses: u64,
}

/// The other peer may not believe a reset; then the session's next segment undoes it.
const DEAD_FOR: Duration = Duration::from_secs(1);

impl Sockets {
    pub(crate) fn new(flow: Flow, grace: Grace, way: Way) -> Self {
        Self { flow, grace, way, ticket: None, first_received: [None; 2], is_silent: false, dead_since: None }
    }

    /// With the session's sockets, for a turn: downstream, upstream.
    pub fn with<'s>(&'s mut self, sockets: [BorrowedFd<'s>; 2]) -> impl Connections + 's {
        Borrowed { session: self, sockets, stands: [None; 2] }
    }

    /// Notes the session's age, for a later process that finds the flow.
    pub fn set_age(&self, age: Duration) {
        self.flow.set_age(age);
    }

    /// Bytes of both streams since the session began; 0 before the cut.
    #[must_use]
    pub fn stream_bytes(&self) -> u64 {
        self.flow.stream_bytes()
    }

    /// The caller closes the sockets now: that is silent. From now on the flow belongs to the machine.
    pub fn offload(self, sockets: [BorrowedFd<'_>; 2]) -> Watched {
        if !self.is_silent {
            // If one is not closed silently, it is reset, and its peer with it; the flow translates what the
            // peers say to that.
            let _ = repair::silence(&sockets);
        }
        self.flow.offload()
    }
}

#[derive(Debug)]
struct Borrowed<'s> {
    session: &'s mut Sockets,
    sockets: [BorrowedFd<'s>; 2],
    /// Where the sockets stand. Nothing is written in a turn, so it is asked once for both.
    stands: [Option<repair::Stand>; 2],
}

impl Borrowed<'_> {
    fn stand(&mut self, side: usize) -> Result<repair::Stand, CallError> {
        if let Some(stand) = self.stands[side] {
            return Ok(stand);
        }
        let stands = repair::stands(self.sockets)?;
        self.stands = stands.map(Some);
        self.session.first_received = stands.map(|stand| Some(stand.first_received));
        Ok(stands[side])
    }
}

impl Connections for Borrowed<'_> {
    fn can_repair(&self) -> bool {
        repair::is_possible()
    }

    fn is_heard(&self, side: usize) -> bool {
        self.session.flow.is_heard(side)
    }

    fn scales_fit(&self) -> bool {
        self.session.flow.scales_fit()
    }

    fn next_to_write(&mut self, side: usize) -> Result<Option<u32>, CallError> {
        if repair::has_unsent(self.sockets[side])? {
            return Ok(None);
        }
        Ok(self.stand(side)?.next_to_write)
    }

    fn received(&mut self, side: usize) -> Result<Received, CallError> {
        let first = match self.session.first_received[side] {
            Some(first) => first,
            None => self.stand(side)?.first_received,
        };
        repair::received_since(self.sockets[side], first)
    }

    fn is_established(&mut self, side: usize) -> Result<bool, CallError> {
        Ok(repair::connection(self.sockets[side])?.is_established)
    }

    fn pending_bytes(&mut self, side: usize) -> Result<Pending, CallError> {
        let socket = self.sockets[side];
        let unacknowledged = socket::unacknowledged_bytes(socket)? as u64;
        Ok(Pending { unread: repair::unread_bytes(socket)?.into(), unacknowledged })
    }

    fn has_acknowledged(&self, side: usize, number: u32) -> bool {
        self.session.flow.has_acknowledged(side, number)
    }

    fn may_be_cut(&self) -> Result<(), Reason> {
        let Sockets { way: Way { ways, ends, losses }, flow, .. } = &*self.session;
        ways.may_offload_by(ends, flow.devices(), *losses).map_err(|stays| stays.reason())
    }

    fn reset_when_closed(&mut self) {
        for socket in self.sockets {
            // If it fails, the peer sees an orderly end instead of a reset.
            let _ = set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    fn cut(&mut self, mapping: &Mapping, bytes: [u64; 2]) {
        self.session.flow.cut(mapping.cuts, bytes);
    }

    fn hold(&mut self, mapping: &Mapping) {
        self.session.flow.hold(mapping.shifts);
    }

    fn offers_fit(&self) -> bool {
        self.session.flow.offers_fit()
    }

    fn ask_peers(&mut self) {
        // If it fails, the peers ask each other, only later.
        let _ = repair::ask_peers(self.sockets);
    }

    fn keep(&mut self, side: usize, next: u32) {
        self.session.flow.keep(side, next);
    }

    fn all_is_delivered(&mut self, ended: Ended) -> bool {
        self.session.flow.all_is_delivered(ended)
    }

    fn back_to_tail(&mut self) -> bool {
        self.session.flow.back_to_tail()
    }

    fn fall_silent(&mut self) -> bool {
        self.session.is_silent = self.session.is_silent || repair::silence(&self.sockets).is_ok();
        if !self.session.is_silent {
            // The programs translate the answers to keepalives, so the kernel would take the peers for gone,
            // and reset them.
            for socket in &self.sockets {
                let _ = set_socket_keepalive(socket, false);
            }
        }
        self.session.is_silent
    }

    fn has_ended(&mut self) -> bool {
        let stage = self.session.flow.stage();
        if stage != Stage::Dead {
            self.session.dead_since = None;
        }
        match stage {
            Stage::Closing | Stage::Gone => true,
            Stage::Dead => self.session.dead_since.get_or_insert_with(Instant::now).elapsed() >= DEAD_FOR,
            Stage::Free | Stage::Armed | Stage::Tail | Stage::Spliced => false,
        }
    }

    fn ask_for_grace(&mut self) {
        self.session.ticket = Some(self.session.grace.ask());
    }

    fn is_grace_over(&self) -> bool {
        self.session.ticket.is_some_and(|ticket| self.session.grace.is_over(ticket))
    }
}
