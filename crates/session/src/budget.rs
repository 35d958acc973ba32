//! Limits on what all sessions together may hold. The caller decides what to do without a [`Permit`]: copy
//! instead of splice, stop accepting, refuse a header.

use std::sync::Arc;

use truepeer_policy::{HeaderRule, Route};

pub use crate::allowance::{Budget, Permit};
use crate::clients::{ClientConnections, Counted, PerClient, TooMany};

/// All global limits.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Sessions: two descriptors each; for HTTP see [`Self::for_http`].
    pub sessions: Budget,
    /// UDP flows: one descriptor each.
    pub flows: Budget,
    /// Pipes that hold spliced bytes: two descriptors and up to 256 KiB of kernel memory each.
    pub pipes: Budget,
    /// Bytes in truepeer's memory that were read from one side and not yet taken by the other.
    pub backlog_bytes: Budget,
    /// Bytes of incomplete headers.
    pub header_bytes: Budget,
    /// Each client's connections.
    pub clients: Arc<ClientConnections>,
}

/// Descriptors reserved for other purposes: standard streams, epoll and event descriptors, listeners,
/// netlink, logs.
const RESERVED_FILES: usize = 64;
/// The pipes of 256 KiB that the unprivileged quota of 64 MiB allows, minus a margin
/// (`fs.pipe-user-pages-soft`).
const MOST_PIPES: usize = 240;
const BACKLOG_BYTES: usize = 256 << 20;
const HEADER_BYTES: usize = 64 << 20;

impl Budgets {
    /// Divides `open_files` descriptors among pipes, TCP sessions and UDP flows, as far as each is needed.
    /// The byte budgets are fixed.
    #[must_use]
    pub fn for_open_files(open_files: usize, tcp: bool, udp: bool) -> Self {
        let usable = open_files.saturating_sub(RESERVED_FILES).max(4);
        let pipes = if tcp { (usable / 16).min(MOST_PIPES) } else { 0 };
        let left = usable - 2 * pipes;
        let (for_sessions, for_flows) = match (tcp, udp) {
            (true, true) => (left / 2, left / 2),
            (false, true) => (0, left),
            _ => (left, 0),
        };
        Self {
            sessions: Budget::new(for_sessions / 2),
            flows: Budget::new(for_flows),
            pipes: Budget::new(pipes),
            backlog_bytes: Budget::new(BACKLOG_BYTES),
            header_bytes: Budget::new(HEADER_BYTES),
            clients: Arc::default(),
        }
    }

    /// Counts one more connection of the client of `route`. `None`: it is not limited.
    ///
    /// # Errors
    /// The client has as many as it may have.
    pub fn count_client(
        &self,
        limit: &PerClient,
        route: &Route,
        rule: HeaderRule,
    ) -> Result<Option<Counted>, TooMany> {
        limit.count(&self.clients, self.sessions.limit(), route, rule)
    }

    /// Gives all budgets the limits of `others`: the listeners have changed.
    pub fn set_limits(&self, others: &Self) {
        for (own, other) in [
            (&self.sessions, &others.sessions),
            (&self.flows, &others.flows),
            (&self.pipes, &others.pipes),
            (&self.backlog_bytes, &others.backlog_bytes),
            (&self.header_bytes, &others.header_bytes),
        ] {
            own.set_limit(other.limit());
        }
    }

    /// Divides `open_files` descriptors if all sessions are HTTP. Most of them wait for a request and need
    /// one descriptor, so two thirds are for clients. Connections to the origin share the rest. A request
    /// waits if no descriptor is left.
    #[must_use]
    pub fn for_http(open_files: usize) -> Self {
        let usable = open_files.saturating_sub(RESERVED_FILES).max(4);
        Self { sessions: Budget::new(usable - usable / 3), ..Self::for_open_files(0, false, false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_limit_takes_nothing_back() {
        let budgets = Budgets::for_open_files(1024, true, false);
        let held = budgets.sessions.take(10).expect("10 of hundreds");
        assert!(budgets.flows.take(1).is_none());
        let others = Budgets { sessions: Budget::new(5), flows: Budget::new(2), ..budgets.clone() };
        budgets.set_limits(&others);
        assert!(budgets.sessions.take(1).is_none() && budgets.sessions.used() == 10);
        assert!(budgets.flows.take(2).is_some());
        drop(held);
        assert!(budgets.sessions.take(5).is_some());
    }

    #[test]
    fn sessions_flows_and_pipes_fit_into_the_open_files() {
        for open_files in [0, 70, 256, 1024, 20_000, 1 << 20] {
            for (tcp, udp) in [(true, false), (false, true), (true, true)] {
                let budgets = Budgets::for_open_files(open_files, tcp, udp);
                let needed = 2 * (budgets.sessions.limit() + budgets.pipes.limit()) + budgets.flows.limit();
                assert!(
                    needed + RESERVED_FILES <= open_files.max(RESERVED_FILES + 4),
                    "{open_files}: {needed}"
                );
                assert_eq!((budgets.sessions.limit() > 0, budgets.flows.limit() > 0), (tcp, udp));
            }
        }
    }

    #[test]
    fn sessions_of_http_leave_descriptors_for_the_origin() {
        for (open_files, sessions) in [(0, 3), (70, 4), (1024, 640), (20_000, 13_291)] {
            let budgets = Budgets::for_http(open_files);
            assert_eq!((budgets.sessions.limit(), budgets.pipes.limit()), (sessions, 0), "{open_files}");
        }
    }
}
