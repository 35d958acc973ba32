//! Other processes: starts one under a supervisor, and accesses it on its behalf.
//!
//! Access needs the same permission as ptrace(2): the same user, or CAP_SYS_PTRACE; with Yama's
//! ptrace_scope=1 the process must also be a descendant.

mod apart;
mod descriptor;
mod fault;
mod fork;
mod memory;
mod signals;
mod spawn;
mod trace;

pub use apart::fork_apart;
pub use descriptor::{Reach, descriptor_of};
pub use fault::tell_of_faults;
pub use fork::{Forked, fork};
pub use memory::{read_memory, write_memory};
pub use signals::{
    Caught, SignalFd, block_child_signal, die_by, end_now, hear_ignored_signals, keep_ignored_pipe_in,
    unblock_signals_in, with_child_signal,
};
pub use spawn::{SpawnCommand, Supervised, receive_descriptor, send_descriptor};
pub use trace::{PendingCall, StoppedThread, Tracer, Untraceable, may_trace, trace_apart};
