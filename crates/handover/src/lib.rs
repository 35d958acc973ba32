//! Handing over at `accept()`: what `truepeer run` does with a connection that the kernel has just accepted.
//! Both mechanisms use it: the preloaded library and the supervisor.
//!
//! ```text
//! accept ─▶ look ──┬── Named ──▶ take ─▶ Names::insert ─▶ the application sees the client
//!    ▲             ├── Plain ────────────────────────────▶ the application sees the sender
//!    │             ├── Refused ─▶ closed, Complaints
//!    │             ├── WakeUp ──▶ closed: a late one is ready
//!    │             └── NeedMore ▶ Late ─▶ (its header comes, or never) ─▶ ready ─┐
//!    └────────────────────── WakeUp::ring: a connection from truepeer itself ◀─────────┘
//! ```
//! Nothing here waits for a sender, takes a lock, or calls a C library function that the application may have
//! replaced: rustix makes its own system calls. The only `unsafe` code maps the table of names.

mod after_wait;
mod bans;
mod complaints;
mod late;
mod listener;
mod look;
mod names;
mod reminder;
mod rules;
mod sending;
mod settings;
mod show;
mod wake;

pub use after_wait::{AfterWait, Watched, is_exposed, is_guarded};
pub use bans::PERIOD as BANS_PERIOD;
pub use complaints::LockFreeComplaints;
pub use late::{Decided, Late};
pub use listener::{ListenerAddr, NotAListener};
pub use look::{EXPOSED, Look, Refused, look, take};
pub use names::{
    Census, ConnectionTuple, NO_CENSUS, Name, Names, NamesFull, OLDEST_FORGOTTEN, Remembered, SocketDiag,
    Standing,
};
pub use reminder::{Reminded, SocketId, epolls_of, is_watched, remind};
pub use rules::RunRules;
pub use sending::{ConnectSettings, MOST_TLVS, OutgoingHeader, TlvOfFile};
pub use settings::{Destination, Listeners, RunSettings, SettingsError};
pub use show::{Shown, as_seen_by};
pub use wake::{ELSEWHERE, WakeUp, is_elsewhere, ringing_socket};

#[cfg(test)]
mod tests;
