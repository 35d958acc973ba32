//! Connections to the origin: connecting, keeping idle ones, and noticing dead ones.

mod access;
mod dial;
mod pool;

pub(crate) use access::Access;
pub use dial::{Dial, DialError, Dialled, Offer, OriginProtocol};
pub(crate) use pool::OriginConnection;
pub use pool::{KeptBy, Pool};
