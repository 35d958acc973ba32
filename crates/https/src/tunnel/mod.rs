//! TLS for any TCP protocol: terminated (`--tls-cert`), originated towards the backend (`--origin-tls`), or
//! both. The backend sees the client's address, as without TLS.
//!
//! ```text
//! Downstream::open ──▶ dial, as the client ──▶ [PROXY header] ──▶ [TLS] ──▶ Pump: both directions until they have ended
//! ```
//! close_notify on one side becomes FIN on the other, and vice versa. A reset stays a reset. An end without
//! close_notify becomes a reset, because anyone on the path could have forged it.

mod session;
pub(crate) mod tlvs;

pub use self::session::OriginTls;
pub(crate) use self::session::{SessionContext, serve};
