//! UDP flows that leave user space: programs at tc rewrite their datagrams (`c/`), and user space keeps the
//! sockets, so that any datagram, or the whole flow, can come back at any time.
//!
//! ```text
//!  begin ──▶ is_here ── both devices learnt ──▶ translated      recall: user space's again, at once
//!                 ▲                                 │
//!                 └──────── learn_again ────────────┘           dropped: forgotten
//! ```
//! Nothing is pinned: programs and tables end with the process. That needs links to devices (Linux 6.6).

mod free;
mod layout;
mod load;
mod table;

pub use layout::{Header, Path};
pub use load::LoadError;
pub use table::{Ends, FlowTable, Moved, NotBegun, Offload};
