//! The rules and routes that bring a backend's replies back to truepeer.
//!
//! An upstream socket is bound to the client's address, so the backend replies to a foreign address, and the
//! kernel would send the reply out of the machine. [`mod@plan`] computes what keeps the reply here (pure),
//! [`mod@print`] shows it as commands, and [`mod@apply`] brings it into the kernel:
//!
//! ```text
//!  setup ──plan──▶ items ──print──▶ `ip …`, `sysctl …`
//!                    │
//!                    └──apply──▶ kernel, tagged as truepeer's ──▶ removed by the last owner
//! ```
#![forbid(unsafe_code)]

pub mod apply;
pub mod change;
pub mod found;
pub mod item;
pub mod kernel;
pub mod message;
pub mod netlink;
pub mod options;
pub mod owners;
pub mod place;
pub mod plan;
pub mod print;
pub mod show;
pub mod sysctl;
pub mod watch;
