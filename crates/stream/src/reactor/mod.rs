//! The event loop: one thread, one epoll, a task for each connection.
//!
//! ```text
//!            ┌──────────────────────── one turn ─────────────────────────┐
//! epoll ────▶│ events ─▶ sources: readiness, and the waiting tasks        │
//! mailbox ──▶│ wakes from other threads                                  │──▶ tasks that are ready, each polled once
//! clock ────▶│ timers that have passed                                   │    and once more to send ([`settling`])
//!            └───────────────────────────────────────────────────────────┘
//! ```
//! A task is polled at most twice a turn, and one poll does at most 64 reads and writes
//! ([`Reactor::poll_allowance`]), so that one busy connection can't starve the others. A task that panics is
//! dropped with everything it owns, and the others continue. Only [`Remote`] and wakers are `Send`.

mod connect;
mod event_loop;
mod listener;
mod remote;
mod settling;
mod sources;
mod state;
mod stream;
mod tasks;
mod timer;
mod timers;
mod wake;

pub use self::connect::connect;
pub use self::event_loop::Reactor;
pub use self::listener::TcpListener;
pub use self::remote::Remote;
pub use self::stream::{AbortHandle, TcpStream, refused_late};
pub use self::timer::{Elapsed, Timer};

#[cfg(test)]
mod tests;
