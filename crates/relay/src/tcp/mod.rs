//! TCP sessions, from the accepted connection to its last byte.

pub(crate) mod connecting;
pub(crate) mod context;
mod half;
mod header;
pub(crate) mod left;
pub(crate) mod relaying;
pub(crate) mod session;
