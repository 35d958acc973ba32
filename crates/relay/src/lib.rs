//! truepeer's relay: TCP sessions between a sender and a backend that sees the client.
//!
//! One thread per core, each with its own edge-triggered epoll; a session is two descriptors and a few hundred
//! bytes. Sessions are written over the [`io::Io`] trait, so that the same code runs on sockets
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

mod entrances;
pub mod io;
pub mod kernel;
mod listener;
mod relay;
#[cfg(test)]
mod sim;
pub mod tcp;
pub mod udp;
mod worker;

pub use relay::Relay;

/// Panics on purpose, so that tests see what a defect would lead to.
#[cfg(test)]
mod trap {
    /// Bytes from the network on which a session panics.
    pub(crate) const TRAP: &[u8] = b"\0a trap\0";

    /// Panics if `bytes` hold a trap.
    pub(crate) fn spring(bytes: &[u8]) {
        let is_trap = bytes.windows(TRAP.len()).any(|window| window == TRAP);
        assert!(!is_trap, "on purpose");
    }
}

#[cfg(test)]
mod tests;
