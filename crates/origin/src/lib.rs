//! Requests towards origins: connecting, keeping idle connections, noticing dead origins, and one request with
//! its response over one connection, by either version of HTTP.
//!
//! ```text
//! a request ─▶ origins: which one ─▶ access: a kept connection ─┬─▶ http1 ─┬─▶ exchange: both directions at once ─▶ failure
//!                                    │ none                     └─▶ http2 ─┘
//!                                    └▶ dial, by the engine ──────▲
//! ```
//! Neither side of it is known here: the client is [`Incoming`] and [`Outgoing`], connections are any
//! [`Connection`](truepeer_stream::stream::Connection).
#![forbid(unsafe_code)]

mod access;
mod both_ways;
mod client_info;
mod dial;
mod exchange;
mod failure;
mod health;
pub mod host;
pub mod http1;
pub mod http2;
mod http2_wire;
mod kept_body;
mod origins;
mod parties;
mod pool;
mod settings;
mod time_limit;

pub use access::{Access, Accesses, Upstream};
pub use both_ways::{Progress, both};
pub use client_info::ClientInfo;
pub use dial::{Dial, DialError, Dialled, Offer, OriginProtocol};
pub use exchange::Answered;
pub use failure::Failure;
pub use health::{CHECK_LIMIT, Check, Health, HealthChange, HealthRule, HealthTable, OriginHealth};
pub use http2_wire::{Http2Wire, SharedState};
pub use kept_body::{BodyStart, KeptBody};
pub use origins::{Origin, Origins, Serves};
pub use parties::{Departure, Incoming, Outgoing, left};
pub use pool::{KeptBy, OriginConnection, Pool};
pub use settings::{HttpSettings, HttpTimeouts, LINGER_RATE};
pub use time_limit::{TimeLimit, Untaken};
