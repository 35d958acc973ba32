//! TLS termination and origination for any TCP protocol, and the HTTPS reverse proxy.
//!
//! Each worker is a thread with its own executor and epoll. Each connection is one task, a function that
//! reads from top to bottom. Streams implement tokio's I/O *traits*, but use neither its runtime nor its
//! sockets. Every system call goes through libc, so that a network stack in user space can take it over.
//!
//! ```text
//! reactor ── accept ──▶ downstream: admit, PROXY header, TLS ──▶ tunnel ──────────────────────▶ backend
//!                                                          └──▶ exchange (http1 or http2) ──▶ origin
//! ```
#![forbid(unsafe_code)]

mod buffers;
pub mod challenges;
mod client_info;
pub mod close;
pub mod dial;
pub mod downstream;
mod engine;
pub mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gateway;
mod host;
pub mod http2;
mod http2_wire;
pub mod open;
pub mod origin;
pub mod origin_h2;
mod pump;
pub mod reactor;
mod read_buffer;
mod shared_stream;
pub mod sites;
pub mod stream;
pub mod tls;
pub mod tunnel;

pub use client_info::ClientInfo;
pub use engine::{Https, HttpsRules, SessionRules, SiteRules, SitesRules};
