//! The system calls that rustix and socket2 lack.
//!
//! Every function here is small, takes borrowed descriptors, and fails with a [`CallError`] that names the
//! call.

pub mod datagram;
mod error;
pub mod host;
pub mod inherit;
pub mod limits;
pub mod marked;
pub mod netlink;
pub mod netns;
pub mod notices;
pub mod output;
pub mod owner;
pub mod packet;
pub mod process;
pub mod repair;
pub mod seccomp;
pub mod segments;
pub mod sock_diag;
pub mod socket;
pub mod udp;

pub use error::{CallError, Named};
