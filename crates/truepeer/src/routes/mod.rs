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

pub(crate) mod apply;
pub(crate) mod change;
pub(crate) mod found;
pub(crate) mod item;
pub(crate) mod kernel;
pub(crate) mod message;
pub(crate) mod netlink;
pub(crate) mod options;
pub(crate) mod owners;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod print;
pub(crate) mod show;
pub(crate) mod sysctl;
pub(crate) mod watch;
