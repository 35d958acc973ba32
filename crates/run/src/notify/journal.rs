//! What is counted, and what is said: complaints at most once a minute for each reason and sender.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rustix::io::Errno;
use tracing::{debug, error, info, warn};
use truepeer_handover::{EXPOSED, LockFreeComplaints, Refused};
use truepeer_policy::{ClientAddr, SenderAddr};
use truepeer_session::{Advise, Hint};

use super::pollers::Obstacle;
use super::ready::Connection;

#[derive(Debug)]
pub(super) struct SupervisorLog {
    began: Instant,
    complaints: LockFreeComplaints,
    advise: Option<Advise>,
    named: u64,
    plain: u64,
    refused: u64,
    late: u64,
    not_showable: u64,
}

impl SupervisorLog {
    /// `advise` puts hints into words.
    pub(super) fn new(advise: Option<Advise>) -> Self {
        Self {
            began: Instant::now(),
            complaints: LockFreeComplaints::new(),
            advise,
            named: 0,
            plain: 0,
            refused: 0,
            late: 0,
            not_showable: 0,
        }
    }

    pub(super) fn on_handed_over(&mut self, connection: &Connection) {
        match connection.client {
            Some((client, _)) => {
                self.named += 1;
                debug!(%client, sender = %connection.sender, "handed over");
            }
            None => {
                self.plain += 1;
                debug!(sender = %connection.sender, "handed over: the sender is the client");
            }
        }
    }

    /// A header that was not there yet at accept().
    pub(super) fn on_late(&mut self) {
        self.late += 1;
    }

    pub(super) fn on_refused(&mut self, refused: &Refused) {
        self.refused += 1;
        let Some(reason) = refused.complaint() else {
            debug!("{refused}");
            return;
        };
        let advice = self.advise.zip(hint(refused)).and_then(|(advise, hint)| advise(&hint));
        let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
        self.complain(reason, refused.sender().map(SenderAddr::ip), |held_back| {
            warn!(reason, held_back, "{refused}{advice}");
        });
    }

    /// An IPv6 client on an AF_INET listener: programs have no room for its address there.
    pub(super) fn on_not_showable(&mut self, client: ClientAddr, sender: SenderAddr) {
        self.not_showable += 1;
        self.complain("client_not_showable", Some(sender.ip()), |held_back| {
            warn!(%client, %sender, held_back, "the program listens on an IPv4 socket, which can't show an \
                IPv6 client: it sees the sender; let it listen on [::]");
        });
    }

    /// A header that comes now is data.
    pub(super) fn on_exposed(&self, sender: SenderAddr) {
        self.complain("silent", Some(sender.ip()), |held_back| warn!(held_back, "{sender} {EXPOSED}"));
    }

    /// A name that an open connection may have needed still.
    pub(super) fn on_forgotten(&mut self, why: &'static str) {
        self.complain("names_forgotten", None, |held_back| warn!(held_back, "{why}"));
    }

    /// The program's queue of late connections is gone with its listener.
    pub(super) fn on_abandoned(&mut self, count: usize) {
        if count > 0 {
            warn!(
                count,
                "connections whose header came late are closed: no known process listens there any more"
            );
        }
    }

    /// A process of a family whose first program has the library makes its calls without it.
    pub(super) fn on_without_library(&mut self, thread: i32) {
        self.complain("without_library", None, |held_back| {
            let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            info!(
                held_back,
                "process {thread} ({}) accepts without the library: the supervisor serves it",
                name.trim()
            );
        });
    }

    /// A process of the family gets no io_uring, and may say why it needs it.
    pub(super) fn on_io_uring(&mut self, thread: i32) {
        self.complain("io_uring", None, |held_back| {
            warn!(
                held_back,
                "process {thread} asked for io_uring and gets ENOSYS: connections that it \
                accepts or makes through a ring can't be seen; if it needs io_uring, use truepeer attach or \
                truepeer proxy"
            );
        });
    }

    /// A 32-bit program of the family, or a 64-bit one by `int 0x80`.
    pub(super) fn on_foreign(&mut self, thread: i32) {
        self.complain("foreign", None, |held_back| {
            warn!(
                held_back,
                "process {thread} listens, accepts, connects or asks for io_uring by 32-bit \
                system calls and gets ENOSYS: 32-bit programs can't be served; use truepeer attach or \
                truepeer proxy"
            );
        });
    }

    /// A process of the program's family that can't be looked into.
    pub(super) fn on_unreachable(&mut self, thread: i32, errno: Errno) {
        self.complain("unreachable", None, |held_back| {
            error!(
                held_back,
                "process {thread} can't be served ({errno}): it runs as another user, or may \
                not be looked into; give truepeer CAP_SYS_PTRACE, or use truepeer attach or truepeer proxy"
            );
        });
    }

    /// At the start, because later it concerns connections that wait.
    pub(super) fn on_may_not_trace(&self, obstacle: Obstacle) {
        warn!(
            "{obstacle}: if this host can't connect to the program's listener, a connection whose header \
            comes late waits for the next one where a thread waits in poll() or select(); in a systemd unit \
            add SystemCallFilter=ptrace"
        );
    }

    /// The program can be woken by a connection alone. With an obstacle it waits in poll() or select().
    pub(super) fn on_not_woken(&mut self, listener: SocketAddr, errno: Errno, obstacle: Option<Obstacle>) {
        let (how, also) = match obstacle {
            Some(obstacle) => (
                format!("it waits in poll() or select(), {obstacle}"),
                ", or ptrace(2) (in a systemd unit SystemCallFilter=ptrace)",
            ),
            None => ("it does not wait in accept(), epoll, poll() or select(), or for SIGIO".to_owned(), ""),
        };
        self.complain("not_woken", None, |held_back| {
            warn!(%listener, held_back, "a connection is ready, whose header came late, but the program \
                can't be woken for it: {how}, and connecting to its listener failed ({errno}); permit \
                connections of this host to {listener}{also}");
        });
    }

    /// Something the supervisor needs could not be had for a moment.
    pub(super) fn on_trouble(&mut self, what: &'static str, error: &dyn std::fmt::Display) {
        self.complain(what, None, |held_back| error!(held_back, "{what}: {error}"));
    }

    pub(super) fn has_handed_over(&self) -> bool {
        self.named + self.plain + self.refused > 0
    }

    pub(super) fn on_end(&self) {
        let Self { named, plain, refused, late, not_showable, .. } = self;
        info!(named, plain, refused, late, not_showable, "connections handed over: {}", named + plain);
    }

    fn complain(&self, reason: &'static str, about: Option<IpAddr>, say: impl FnOnce(u64)) {
        if let Some(held_back) = self.complaints.may_say(reason, about, self.began.elapsed()) {
            say(held_back);
        }
    }
}

fn hint(refused: &Refused) -> Option<Hint> {
    match refused {
        Refused::Policy(refusal) => Some(Hint::Refusal(*refusal)),
        Refused::Header { error, .. } => error.is_too_long().then_some(Hint::HeaderTooLong),
        _ => None,
    }
}
