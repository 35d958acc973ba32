//! `truepeer probe`: plays a sender towards a receiver, or a receiver towards senders. Judges the other side
//! by the specification, sentence by sentence. Knows no engine: the other side may be any program.
//!
//! ```text
//! receiver: vectors, cuts ─▶ case ─▶ talk (a connection) ─▶ seen: taken, refused, … ─▶ verdict ─▶ report
//! sender:   listener ─▶ its segments ─▶ proto::decode ─▶ rules that hold or are broken ─▶ report
//! ```
//!
//! A receiver doesn't say whether it took a header. Its application does: it answers a request that follows
//! ([`App`]), and its log may name the client. What neither shows is reported as unknown.
#![forbid(unsafe_code)]

mod app;
mod belief;
mod case;
mod log;
mod permit;
mod receiver;
mod report;
mod seen;
mod sender;
mod talk;
mod udp;
mod verdict;

pub use app::App;
pub use permit::{NotPermitted, permit};
pub use receiver::{Receiver, probe as probe_receiver};
pub use report::{Report, Totals};
pub use sender::{Listening, judge as probe_sender};
pub use udp::probe as probe_datagrams;
pub use verdict::Verdict;

/// An error of this side: the other side is not judged.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No connection.
    #[error("can't connect to {0}")]
    Connect(std::net::SocketAddr, #[source] std::io::Error),
    /// The address to listen on, or to send from.
    #[error("can't bind to {0}")]
    Bind(std::net::SocketAddr, #[source] std::io::Error),
    /// The file that the receiver logs to.
    #[error("--client-log {0}")]
    Log(String, #[source] std::io::Error),
    /// Anything else.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
