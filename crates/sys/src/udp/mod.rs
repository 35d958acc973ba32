//! Datagrams by the batch: recvmmsg, sendmmsg, and the control messages that say where a datagram was sent to
//! and how a large buffer falls into datagrams (UDP_GRO, UDP_SEGMENT).

mod address;
mod receive;
mod send;
mod socket;

pub use receive::{Arrival, ReceiveBatch};
pub use send::{Run, send_runs};
pub(crate) use socket::grow_recv_buffer;
pub use socket::{
    GrowLater, Path, disable_gro, enable_arrival_reports, enable_gro, force_buffers, grow_buffers,
    grow_later, grow_later_by, set_steering, supports_segmentation, udp_socket,
};

use std::net::IpAddr;

/// The longest UDP payload over IPv4: 65 535 less IP and UDP headers. Over IPv6 it is 20 bytes more.
pub const LONGEST_DATAGRAM: usize = 65_535 - 8;

/// The local end of a datagram: what it was sent to, and so what the answer must come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The address; never a wildcard.
    pub ip: IpAddr,
    /// The interface that a link-local address belongs to; 0 leaves the choice to the routes.
    pub interface: u32,
}
