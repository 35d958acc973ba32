//! Connections with and without TLS, for any protocol: an event loop for each thread, TLS streams, and the pump
//! that moves bytes between two of them. Knows no HTTP.
//!
//! Streams implement tokio's I/O *traits*, but use neither its runtime nor its sockets. Every system call goes
//! through libc, so that a network stack in user space can take it over.
//!
//! ```text
//! epoll ─▶ reactor ─▶ TcpStream ─┬─────────────▶ stream::Stream ─▶ shared_stream, read_buffer ─▶ the task
//!                                └▶ TlsStream ─▶                └▶ pump ─▶ another stream
//! ```
#![forbid(unsafe_code)]

pub mod buffers;
pub mod open;
pub mod pump;
pub mod reactor;
pub mod read_buffer;
pub mod shared_stream;
pub mod stream;
pub mod tls;
