//! HTTP/2 with clients that negotiate it (ALPN). Each stream is an exchange with the origin, in the
//! version of HTTP that is spoken there.
//!
//! ```text
//! connection task: frames in and out (`truepeer_http::http2`) ──▶ a task for each stream: Http2Body ─▶ Service::serve ─▶ Http2Reply
//! ```
//! A client's use of memory is bounded: concurrent streams, bytes in flight of each (a stream's window opens
//! only as the origin takes the bytes), heads, and what waits to be sent. Floods of frames that carry no
//! request, and of requests that are cancelled, end the connection (GOAWAY, ENHANCE_YOUR_CALM). An extended
//! CONNECT (RFC 8441) becomes an upgrade at the origin (`websocket`).

mod connection;
mod request;
mod response;
mod rest;
mod stream;
#[cfg(test)]
mod tests;
mod websocket;

pub use connection::serve_http2;
