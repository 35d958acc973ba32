//! The keeper: a small process that changes routing rules, and grows buffers, for a process that parses what
//! the network sends.
//!
//! ```text
//! truepeer, one thread ──fork──▶ keeper: CAP_NET_ADMIN, its own seccomp list, no file but /proc
//!      │ gives up CAP_NET_ADMIN     ▲ │
//!      ▼                            │ ▼ one answer to each
//! listeners, workers ───────────────┘   add these rules, remove what nobody uses, share a port, grow UDP sockets' buffers; nothing else
//! ```
//! - **It trusts nobody.** [`Permitted`] comes from the configuration of the start, before the first byte of
//!   the network. A message that asks for a rule that truepeer could not want with it is refused, and so is
//!   every message that is not exactly a `wire::Request`.
//! - **The relay counts itself.** Its tokens (`routes::owners`) name it as the user of its rules, so they
//!   stay counted if the keeper ends.
//! - **The relay ends without a word** (kill -9): the keeper removes what no other truepeer uses, unless
//!   sessions go on in the kernel (`--splice`).
//! - **The keeper ends without a word:** the relay says so and serves on. Rules stay as they are until
//!   somebody removes them.

mod client;
pub mod guard;
mod owner;
mod permitted;
mod pins;
mod records;
mod repairs;
mod service;
mod wire;

pub use client::{Keeper, reap};
pub use permitted::Permitted;
pub use pins::PinsKeeper;
pub use repairs::RepairKeeper;
pub use service::hold_no_output;
