//! Connections to the origin: connecting, keeping idle ones, and noticing dead ones.

mod access;
mod dial;
mod health;
mod origins;
mod pool;

pub(crate) use access::{Access, Accesses};
pub use dial::{Dial, DialError, Dialled, Offer, OriginProtocol};
pub(crate) use health::{CHECK_LIMIT, HealthChange};
pub use health::{Check, Health, HealthRule, HealthTable, OriginHealth};
pub use origins::{Origin, Origins, Serves};
pub(crate) use pool::OriginConnection;
pub use pool::{KeptBy, Pool};
