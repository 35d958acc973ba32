//! Protocols over UDP that say more about ports than the datagram's own do.

use std::fmt::Display;

use super::problem::{OptionName, Problem};
use crate::spec::{AttachSpec, Port};

/// RFC 1350, 4: the server answers from a port that it chooses for each transfer.
const TFTP: u16 = 69;
/// Minecraft Bedrock, over RakNet: the server drops a handshake that names another port than its own.
const RAKNET: [u16; 2] = [19132, 19133];

/// The UDP ports of an attachment, each with its backend's.
pub(super) fn ports_of(attach: &AttachSpec) -> impl Iterator<Item = (u16, u16)> {
    attach.port.iter().flat_map(|ports| &ports.0).filter_map(|port| match *port {
        Port::Tcp(_) => None,
        Port::Udp { from, backend } => Some((from, backend)),
    })
}

/// Refuses `value`, of this option, if TFTP's port is among the ports that it names.
pub(super) fn refuse_tftp(option: &'static str, value: &impl Display, ports: &[u16]) -> Result<(), Problem> {
    if !ports.contains(&TFTP) {
        return Ok(());
    }
    Err(Problem::Value {
        place: OptionName(option),
        value: format!(" {value}"),
        expected: "TFTP (port 69 of UDP) can't be served: its server answers from a new port for each transfer, and such answers \
                   belong to no flow; let clients reach the TFTP server itself"
            .to_owned(),
    })
}

/// A warning if RakNet's port is mapped to another one, which its servers refuse. `to`: the port to which the
/// sender sends.
pub(super) fn warn_of_raknet(to: u16, backend: u16) -> Option<String> {
    let is_raknet = RAKNET.contains(&to) || RAKNET.contains(&backend);
    (to != backend && is_raknet).then(|| {
        format!(
            "datagrams to port {to} go to port {backend}: RakNet (Minecraft Bedrock) answers the first one, and then drops a client \
             that names another port than the server's own; use the same port for clients, truepeer and the server"
        )
    })
}

/// A note where another protocol may name the port in its data.
pub(super) fn note_of_ports(to: u16, backend: u16) -> Option<String> {
    (to != backend && warn_of_raknet(to, backend).is_none()).then(|| {
        format!(
            "datagrams to port {to} go to port {backend}: a protocol that names the port in its data, such as RakNet, needs the same port"
        )
    })
}
