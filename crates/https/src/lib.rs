//! TLS termination and origination for any TCP protocol, and the HTTPS reverse proxy.
//!
//! Each worker is a thread with an event loop and streams of `truepeer_stream`. Each connection is one task,
//! a function that reads from top to bottom.
//!
//! ```text
//! stream ─── accept ──▶ downstream: admit, PROXY header, TLS ──▶ tunnel ──────────────────────▶ backend
//!                                                          └──▶ exchange (http1 or http2) ──▶ origin
//! ```
#![forbid(unsafe_code)]

pub mod challenges;
pub mod close;
pub mod dial;
pub mod downstream;
mod engine;
pub mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gateway;
pub mod http2;
pub mod sites;
pub mod tunnel;

pub use engine::{Https, HttpsRules, SessionRules, SiteRules, SitesRules};
