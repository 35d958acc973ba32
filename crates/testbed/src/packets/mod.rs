//! Hand-made packets: the test determines each byte, valid or not.
//!
//! ```text
//! Segment, Datagram ──▶ Packet (from the IP header on) ──▶ Wire ──veth──▶ a host with its kernel, its backend, and attach
//!   contents              transport: checksums,      ◀── the host's answers, read back
//!                         fragments, extension headers
//! ```
//! The near end of a [`Wire`] has no address and no kernel that would answer: only the test receives what the
//! host sends. A [`Talker`] is a TCP sender on such a wire. A [`BadLink`] connects two hosts and damages
//! their packets.

mod bad_link;
mod packet;
mod segment;
mod sum;
mod talker;
mod wire;

pub use bad_link::{BadLink, Deeds, Mischief};
pub use packet::{Datagram, Packet};
pub use segment::{ACK, FIN, PSH, RST, SYN, Segment, URG, timestamps};
pub use talker::Talker;
pub use wire::{Tag, Wire};
