//! Servers that speak first, behind senders whose header comes with the client's first bytes.

use crate::spec::SenderName;

/// Ports and their protocols.
const PORTS: [(u16, &str); 10] = [
    (21, "FTP"),
    (22, "SSH"),
    (25, "SMTP"),
    (110, "POP3"),
    (143, "IMAP"),
    (587, "SMTP"),
    (2525, "SMTP"),
    (3306, "MySQL"),
    (4190, "ManageSieve"),
    (5900, "VNC"),
];

/// The protocol of a port, if its servers speak first.
pub fn speaks_first(port: u16) -> Option<&'static str> {
    PORTS.iter().find(|(first, _)| *first == port).map(|(_, protocol)| *protocol)
}

/// What to ask for, where the header comes too late.
pub const ASK_AWS: &str = "ask AWS support to set proxy_protocol_v2.client_to_server.header_placement of the target group to on_first_ack";

/// A warning if the sender's header can't come before the server speaks. `ports`: of TCP servers.
pub(super) fn warning(sender: Option<SenderName>, ports: impl Iterator<Item = u16>) -> Option<String> {
    let sender = sender.filter(|sender| sender.sends_header_late())?;
    let mut ports: Vec<_> = ports.filter(|port| speaks_first(*port).is_some()).collect();
    ports.sort_unstable();
    ports.dedup();
    let port = *ports.first()?;
    let protocol = speaks_first(port)?;
    Some(format!(
        "--sender {sender}: its header comes with the client's first bytes, and the server on port {port} ({protocol}) speaks first: each \
         waits for the other; {ASK_AWS}"
    ))
}
