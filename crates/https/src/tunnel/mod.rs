//! TLS for any TCP protocol: taken off towards the backend (`--tls-cert`), put on towards it (`--origin-tls`), or both.
//! The backend sees the client, as it does without TLS.
//!
//! ```text
//! Downstream::open ──▶ dial, as the client ──▶ [PROXY header] ──▶ [TLS] ──▶ Pump: both directions until they have ended
//! ```
//! An end is an end on both sides: close_notify and FIN stand for each other. A reset stays a reset, and so does
//! an end that TLS does not vouch for: it could have been made by anybody on the way.

mod session;
pub(crate) mod tlvs;

pub use self::session::OriginTls;
pub(crate) use self::session::{SessionContext, serve};
