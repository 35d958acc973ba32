//! Sessions on simulated sockets: everything that a network can do, in any order, repeatable from a seed.
//!
//! ```text
//! Scenario ─▶ Driver (the worker's part) ─▶ Session ─▶ SimIo ─▶ World ─┬─ Connection: one TCP connection's kernel state
//!                 ▲                                                    └─ Party: the program at its other end
//!                 └───────────── edges, as epoll gives them ◀──────────┘
//! ```
//! The world also moves *during* a session's calls, so bytes, ends and resets arrive between any two of them.
//! Time stands still while anything can move; then it jumps to the next deadline. If nothing moves although
//! bytes could, an edge was lost.

#![cfg_attr(not(test), allow(dead_code, reason = "fuzz/ uses a part of it"))]

#[cfg(test)]
mod case;
mod connection;
mod dice;
mod driver;
mod fuzzed;
mod io;
#[cfg(test)]
mod leaving;
mod offload;
mod party;
#[cfg(test)]
mod relaying;
mod scenario;
#[cfg(test)]
mod stages;
#[cfg(test)]
mod strategies;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod truth;
mod world;

#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzed::any_sessions;
