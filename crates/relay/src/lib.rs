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
mod relay;
#[cfg(test)]
mod sim;
pub mod tcp;
pub mod udp;
mod worker;

pub use relay::{Listening, Relay, StartError};
