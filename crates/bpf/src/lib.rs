//! The way `attach`: programs in the kernel remove the PROXY header from connections to a running, unmodified
//! backend, and answer its `getpeername` with the client. No truepeer process is involved afterwards:
//! programs and tables are pinned, and outlive this process.
//!
//! ```text
//!  Rules (from the policy) ──▶ tables ─┐
//!                                      ├─ pinned in Place: one directory for each network namespace
//!  programs (c/attach) ──▶ links ─────┘
//! ```
//! The sources of the programs explain the mechanism. [`attach()`] installs them, [`status()`] reads their
//! state, [`drain`] and [`detach_now`] end it. [`sweep`] removes the leftovers of vanished network
//! namespaces.

mod again;
mod attach;
mod bans;
mod cgroup;
mod connections;
mod counters;
mod cut;
mod detach;
mod device;
mod error;
mod groups;
mod layout;
mod leftovers;
mod links;
mod load;
mod memory;
mod pinned_link;
mod pins;
mod place;
mod ports;
mod programs;
mod refusals;
mod remove;
mod resize;
mod rules;
mod sizes;
mod splice;
mod status;
mod tables;
#[cfg(test_programs)]
#[doc(hidden)]
pub mod test;
mod trie;
mod trust;
mod whole;
mod witness;

pub use again::can_begin_again;
pub use attach::{Attached, attach};
pub use bans::BanTable;
pub use cgroup::{Cgroups, Living as LivingCgroups, cgroup_root, cgroups_below, covered_cgroup, is_cgroup};
pub use connections::{Connection, Named, connections};
pub use counters::{COUNTERS, Kind, Of, PortCounter};
pub use detach::{detach_now, drain, finish, still_open};
pub use device::Device;
pub use error::AttachError;
pub use leftovers::{gone, left_behind, sweep};
pub use links::{covered_devices, has_tcx, index_of};
pub use memory::Memory;
pub use pins::{DEFAULT_PINS, can_look, find_pins, find_splice_pins, make_pins, make_splice_pins};
pub use place::Place;
pub use ports::{PortRange, port_list, without_overlaps};
pub use programs::are_built_in;
pub use refusals::{Refusal, Refusals};
pub use remove::remove;
pub use rules::{NewConnections, Others, RequiredSecret, Rules, RulesInForce, UdpPort};
pub use sizes::{MAX_FLOWS, MAX_UDP_FLOWS};
pub use splice::{
    ArmError, Attention, Care, Ended, FLOW_BYTES, Flow, Followed, Follower, InUse, Mapped, Question, Removed,
    SPLICE_COUNTERS, Shared, Side, Splices, Stage, Swept, Unattended, Watched, Way, remove_unused,
};
pub use status::{FlowCount, PortStatus, Status, Traffic, counted_at_udp_ports, status, status_among};
