//! Connections to the origin: made, kept while nobody uses them, and found dead in time.

mod access;
mod dial;
mod pool;

pub(crate) use access::Access;
pub use dial::{Dial, DialError};
pub(crate) use pool::OriginConnection;
pub use pool::{KeptBy, Pool};
