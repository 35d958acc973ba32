//! System calls of other processes, answered by this one (seccomp_unotify(2)).
//!
//! ```text
//! program: accept4() ──▶ Filter: "ask" ──▶ Notifier::receive ──▶ decide ──▶ add_descriptor ──▶ send(Answer)
//!          … waits in the kernel …                                                             │
//!          ◀───────────────────────────── result or errno, or "go on" ─────────────────────────┘
//! ```
//!
//! It needs Linux 5.19 (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV): on older kernels any signal interrupts a
//! call that is being answered, and a descriptor that was just handed over is lost.

pub mod calls;
mod filter;
mod notifier;

pub(crate) use filter::MARK;
pub use filter::{Filter, ForeignCalls, SeccompAction, confine, is_supported};
pub use notifier::{Answer, Notification, Notifier};
