//! The hand-over at `accept()`: what `truepeer run` does with a connection that the kernel has just accepted, whichever
//! mechanism stands between the application and the kernel (the preloaded library, or the supervisor).
//!
//! ```text
//! accept ─▶ look ──┬── Named ──▶ take ─▶ Names::insert ─▶ the application sees the client
//!    ▲             ├── Plain ────────────────────────────▶ the application sees the sender
//!    │             ├── Refused ─▶ closed, Complaints
//!    │             ├── WakeUp ──▶ closed: a late one is ready
//!    │             └── NeedMore ▶ Late ─▶ (its header comes, or never) ─▶ ready ─┐
//!    └────────────────────── WakeUp::ring: a connection from ourselves ◀─────────┘
//! ```
//! Nothing here waits for a sender, takes a lock, or calls a function of the C library that the application might have
//! replaced: rustix speaks to the kernel itself. The only `unsafe` is the mapping of the tables of names and of flows.

mod complaints;
mod datagrams;
mod flows;
mod late;
mod look;
mod names;
mod rules;
mod sending;
mod settings;
mod show;
mod wake;

pub use complaints::LockFreeComplaints;
pub use datagrams::{CARRIED_BYTES, Datagrams, Own, Send, SendRequest, now, sends_datagrams};
pub use late::{Decided, Late};
pub use look::{Look, Refused, look, take};
pub use names::{
    Census, NO_CENSUS, Name, Names, NamesFull, OLDEST_FORGOTTEN, Remembered, SocketDiag, Standing, Tuple,
};
pub use rules::RunRules;
pub use sending::{ConnectSettings, OutgoingHeader};
pub use settings::{Destination, Listeners, RunSettings, SettingsError};
pub use show::{Shown, as_seen_by};
pub use wake::{ELSEWHERE, WakeUp, is_elsewhere};

#[cfg(test)]
mod tests;
