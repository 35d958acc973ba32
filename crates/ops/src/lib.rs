//! What an operator sees and says: the admin socket and its pages, `status`, `sessions`, `top`, `doctor`, and
//! the log.
//!
//! ```text
//! truepeer status, sessions, top ─▶ admin (client) ─▶ unix socket ─▶ admin (server) ─▶ trait Running: the program
//! truepeer doctor ─▶ doctor: this machine, and the running program by its admin socket
//! ```
#![forbid(unsafe_code)]

pub mod admin;
pub mod doctor;
pub mod log;
mod operate;
mod reasons;
mod units;

pub use operate::{BanPlaces, BanTerms, ban, ban_clients, unban_clients};
pub use operate::{bans, sessions, status, top, unban, whois};
