//! Packets by hand: each byte of them is the test's, right or wrong.
//!
//! ```text
//! Segment, Datagram ──▶ Packet (from the IP header on) ──▶ Wire ──veth──▶ a host with its kernel, its backend, and attach
//!   what it says          how it is carried: sums,             ◀── what the host answers, read back
//!                         fragments, extension headers
//! ```
//! The near end of a [`Wire`] has no address and no kernel that would answer: whatever the host says is heard by the test alone.
//! A [`Talker`] is a TCP sender on such a wire. A [`BadLink`] joins two hosts and spoils what it carries.

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
