//! TCP sessions, from the accepted connection to its last byte.

pub(crate) mod close;
pub(crate) mod connecting;
mod half;
mod header;
pub(crate) mod listener;
pub(crate) mod relaying;
pub mod send_proxy;
pub(crate) mod session;
