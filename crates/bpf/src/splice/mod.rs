//! Sessions whose packets the kernel translates between their two connections: the tables and programs of
//! `c/offload`. docs/internals/splice.md draws it; crate `splice` hands a session over.

mod attach;
mod attention;
mod counters;
mod flow;
mod follow;
pub(crate) mod keys;
pub(crate) mod layout;
mod locks;
pub(crate) mod mapped;
mod peers;
mod remove;
mod table;
mod watched;

pub use attention::{Attention, Care};
pub use counters::SPLICE_COUNTERS;
pub use flow::{Ended, Flow};
pub use follow::{Followed, Follower};
pub use layout::{FLOW_BYTES, Stage};
pub use mapped::{Mapped, Shared};
pub use peers::{Question, Unattended};
pub use remove::remove_unused;
pub use table::{ArmError, InUse, Side, Splices, Swept, Way};
pub use watched::{Removed, Watched};
