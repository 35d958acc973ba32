//! What a process may do, and the small processes that do the rest for it: [`confine`] gives up what is not
//! needed after the start, the [`keeper`] changes rules, grows buffers and opens listening sockets for it.
#![forbid(unsafe_code)]

pub mod confine;
pub mod keeper;
