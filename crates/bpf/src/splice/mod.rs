//! Sessions whose packets the kernel translates between their two connections: the tables and programs of `c/splice_*`.
//! docs/internals/splice.md draws it; crate `splice` hands a session over.

mod attach;
mod counters;
pub mod door;
mod flow;
mod layout;
mod mapped;
mod table;
mod watched;

pub use counters::SPLICE_COUNTERS;
pub use flow::{Ended, Flow};
pub use layout::{FLOW_BYTES, Stage};
pub use table::{ArmError, Side, Splices, Swept};
pub use watched::{Unattended, Watched};
