//! The repair keeper (`truepeer-splice` in `ps`), of `--splice`: it puts sockets under repair, which needs
//! CAP_NET_ADMIN, for a process that parses what the network sends.
//!
//! ```text
//! worker or sweeper ──order, sockets──▶ repair keeper: CAP_NET_ADMIN, its own seccomp list, no file
//!        ◀──answer──┘
//! ```
//! - **A process of its own**, because the keeper of rules may be changing rules for milliseconds while
//!   workers wait here. It needs fewer system calls, and if one of the two ends, the other goes on.
//! - **It sees only sockets that their owner has sent**, and closes them before it answers.
//! - **Nobody waits twice:** if an answer does not come in time, the keeper counts as gone for ever. Sessions
//!   then stay in user space.

mod client;
mod service;
mod wire;

pub use client::RepairKeeper;
