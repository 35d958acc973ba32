//! The relay: TCP sessions between a sender and a backend that sees the client's address.
//!
//! One thread per core, each with its own edge-triggered epoll. A session is two descriptors and a few
//! hundred bytes. Sessions use the [`io::Io`] trait, so that the same code runs on sockets
//! ([`kernel::Kernel`]) and in a simulator.
//!
//! ```text
//! Worker ── accept ──▶ AwaitHeader ── header, policy ──▶ Connecting ──▶ Relaying ──▶ closed (CloseReason)
//!    │                                                                     │
//!    ├ Table<Entry>: the sessions, by key                                  ├ Half up:   downstream → upstream
//!    ├ Deadlines: header, connect, retry, reset, idle                      └ Half down: upstream → downstream
//!    └ Mailbox: other threads' orders                                          copy while small, splice while bulk
//! ```
#![forbid(unsafe_code)]

pub mod io;
pub mod kernel;
mod kernel_socket;
mod leaving;
mod listener;
mod listener_sockets;
pub mod offload;
mod relay;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../tests/simulator/mod.rs"]
mod sim;
mod splicing;
pub mod tcp;
pub mod udp;
mod worker;

pub use relay::Relay;
pub use splicing::{Offloads, Splicing};
pub use truepeer_splice::{Reason as StaysReason, Ways};
pub use udp::FlowOffload;

/// For fuzz/.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::sim::any_sessions;
}

/// Panics on purpose, so that tests see the effect of a defect.
#[cfg(test)]
mod trap {
    /// Bytes from the network on which a session panics.
    pub(crate) const TRAP: &[u8] = b"\0a trap\0";

    /// Panics if `bytes` contain a trap.
    pub(crate) fn spring(bytes: &[u8]) {
        let is_trap = bytes.windows(TRAP.len()).any(|window| window == TRAP);
        assert!(!is_trap, "on purpose");
    }
}

#[cfg(test)]
mod tests;
