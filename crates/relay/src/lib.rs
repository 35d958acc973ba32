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

/// The log target of the line that a session leaves at its end, at level `info`.
pub const SESSION: &str = "session";

pub mod budget;
pub mod complaints;
pub mod counters;
mod deadlines;
mod entrances;
pub mod io;
pub mod kernel;
mod relay;
pub mod settings;
#[cfg(test)]
mod sim;
pub mod table;
pub mod tcp;
pub mod udp;
mod worker;

pub use relay::{Listening, Relay, StartError};
pub use tcp::close::CloseReason;
pub use tcp::listener::ListenError;
pub use tcp::send_proxy;
pub use worker::{Ended, Ending, Journal};
