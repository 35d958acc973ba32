//! Sessions on simulated sockets: what a network can do to them, in any order, repeatable from a seed.
//!
//! ```text
//! Scenario ─▶ Driver (the worker's part) ─▶ Session ─▶ SimIo ─▶ World ─┬─ Connection: one TCP connection's kernel state
//!                 ▲                                                    └─ Party: who sits at its other end
//!                 └───────────── edges, as epoll gives them ◀──────────┘
//! ```
//! The world also moves *during* a session's calls, so that bytes, ends and resets arrive between any two of them.
//! Time stands still while anything can move; then it jumps to the next deadline. What moves no more although bytes
//! could is a lost edge.

mod case;
mod connection;
mod dice;
mod driver;
mod io;
mod party;
mod relaying;
mod scenario;
mod stages;
mod streams;
mod truth;
mod world;
