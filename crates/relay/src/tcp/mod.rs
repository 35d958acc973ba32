//! TCP sessions, from the accepted connection to its last byte.

pub(crate) mod connecting;
mod half;
mod header;
pub(crate) mod relaying;
pub(crate) mod session;
