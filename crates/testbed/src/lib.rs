//! The test bed: private network namespaces, topologies, real programs, and a harness for tests on them.
//!
//! Nothing here changes the machine's own routes, addresses, ports or mounts. A test binary first moves into
//! private user (if the caller is not root), network, mount and process namespaces. Each test then gets its
//! own network namespace with `lo` up, and every program that it started ends with it.
//!
//! # How to write a test
//! In `Cargo.toml`: `[[test]] name = "echo"`, `harness = false`. In `tests/echo.rs`:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use truepeer_testbed::{Bed, Program, Test, client, tests};
//!
//! fn haproxy_names_the_client(bed: &Bed) -> anyhow::Result<()> {
//!     let backend = truepeer_testbed::Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
//!     let mut stream = client::connect("127.0.0.1:80")?;
//!     let me = stream.local_addr()?.to_string();
//!     let seen = client::ask(&mut stream, b"")?; // writes, half-closes, reads to the end
//!     anyhow::ensure!(seen.trim() == me, "the backend saw {seen}; {}", backend.log());
//!     bed.wait_for("the backend's report", || backend.log().contains(&me))
//! }
//!
//! fn redis_is_there(bed: &Bed) -> anyhow::Result<()> {
//!     let redis = Program::new("redis-server").args(["--port", "6379"]).start(bed)?;
//!     redis.wait_listening("127.0.0.1:6379")
//! }
//!
//! fn main() -> ExitCode {
//!     let mut all = tests![haproxy_names_the_client];
//!     all.push(Test::new("redis_is_there", redis_is_there).needs_program("redis-server"));
//!     truepeer_testbed::main(all)
//! }
//! ```
//!
//! A test that finds that the machine lacks something returns [`skip()`]. It is then listed with its reason
//! and counted as ignored, never as passed. Tests always wait for a state, with a deadline
//! ([`Bed::wait_for`], [`Running::wait_listening`], [`Running::wait_for_log`]); none sleeps to get the
//! timing right. On failure the harness prints the last lines of each program's log.

#![forbid(unsafe_code)]

pub mod account;
pub mod backend;
mod bed;
mod cards;
pub mod chance;
pub mod client;
pub mod crowd;
pub mod datagrams;
mod enter;
mod expose;
pub mod go;
mod harness;
mod kernel;
pub mod matrix;
pub mod packets;
mod passwd;
pub mod pattern;
pub mod peers;
mod program;
mod running;
pub mod servers;
pub mod sessions;
mod skip;
pub mod sockets;
mod topology;
mod truepeer;
mod userns;
mod wait;
mod whereabouts;

pub use backend::Behaviour;
pub use bed::Bed;
pub use harness::{Test, main, run_privately};
pub use kernel::{KernelState, dropped_packets, end_link, kernel_counter};
pub use passwd::User;
pub use program::Program;
pub use running::Running;
pub use skip::{Skip, skip};
pub use topology::{Host, Topology, device_here, ip_here};
pub use truepeer::Truepeer;
pub use truepeer_sys::netns::NetNs;
pub use truepeer_sys::process::with_child_signal;
pub use userns::missing_users;
pub use wait::{WAIT_LIMIT, wait_for};
pub use whereabouts::{find_program, servers_dir, workspace_dir};
