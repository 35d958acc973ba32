//! Other processes: starting one under a supervisor, and reaching into it on its behalf.
//!
//! Reaching in needs what ptrace(2) needs: the same user, or CAP_SYS_PTRACE; with Yama's ptrace_scope=1 also that the
//! process descends from this one.

mod descriptor;
mod fork;
mod memory;
mod signals;
mod spawn;

pub use descriptor::{Reach, descriptor_of};
pub use fork::{Forked, fork};
pub use memory::{read_memory, write_memory};
pub use signals::{Caught, SignalDoor, die_by, end_now, hear_ignored_signals};
pub use spawn::{SpawnCommand, Supervised};
