//! The hand-over: a relayed session leaves user space. Its packets are translated between its two
//! connections, and both sockets are closed without a word.
//!
//! ```text
//!            arm               cut                                delivered             grace period
//!  relayed ──────▶ Armed ─────────────────▶ Tail ──────────────────────▶ Settling ───────────────────▶ let go
//!     ▲              │ write positions        │ sockets deliver what       │ came something in between?
//!     └──────────────┘ StaysHere              │ they have; both carry      └──────────▶ Tail
//!                                             └▶ Broken: the session ends
//! ```
//! [`Handover`] decides, without a clock and without a socket: what it asks for stands in [`Connections`].
//! [`Sockets`] is that on real sockets. docs/internals/splice.md tells why every byte arrives.
#![forbid(unsafe_code)]

mod eligible;
mod grace;
mod handover;
mod mapping;
mod reason;
mod sockets;
mod sweeper;
mod ways;

pub use eligible::arm;
pub use grace::Grace;
pub use handover::{Broken, Connections, Handover, Pending, Progress, Streams, Turn};
pub use mapping::{Mapping, Position};
pub use reason::{Reason, StaysHere};
pub use sockets::Sockets;
pub use sweeper::{Sweeper, ask};
pub use truepeer_bpf::{Attention, Care, Question, Removed, Splices, Stage, Watched};
pub use ways::{Changes, Ways};
