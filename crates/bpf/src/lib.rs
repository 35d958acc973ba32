//! The way `attach`: programs in the kernel take the PROXY header off connections to a running, unmodified backend,
//! and answer its `getpeername` with the client. No process of ours stands in between: what is attached is pinned
//! and goes on when this program ends.
//!
//! ```text
//!  Rules (from the policy) ──▶ tables ─┐
//!                                      ├─ pinned in Place: one directory for each network namespace
//!  programs (c/*.bpf.c) ──▶ links ─────┘
//! ```
//! The programs' sources explain the mechanism; [`attach()`] puts them in place, [`status()`] reads them, [`drain`] and
//! [`detach_now`] end it. What a network namespace leaves behind that ends by itself, [`sweep`] removes.

mod attach;
mod counters;
mod cut;
mod detach;
mod device;
#[doc(hidden)]
pub mod door;
mod error;
mod layout;
mod leftovers;
mod links;
mod load;
#[doc(hidden)]
pub mod oracle;
mod pinned_link;
mod place;
mod programs;
mod rules;
mod sock_diag;
mod status;
mod tables;
mod trie;
#[doc(hidden)]
pub mod udp_door;
mod witness;

pub use attach::{Attached, attach};
pub use counters::{COUNTERS, Counter, Kind, Of};
pub use detach::{NewConnections, detach_now, drain};
pub use device::Device;
pub use error::AttachError;
pub use leftovers::{left_behind, sweep};
pub use place::{DEFAULT_PINS, Place, cgroup_root};
pub use programs::are_built_in;
pub use rules::{Gate, MAX_FLOWS, MAX_UDP_FLOWS, Rules, UdpDialect};
pub use status::{FlowCount, PortStatus, Status, Traffic, status};
