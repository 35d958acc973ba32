//! Who is behind an address, as the programs' tables have it.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use truepeer_policy::AskedAddress;

use crate::error::AttachError;
use crate::layout::{Address, FlowKey, RawFlow, UdpFlow, UdpKey};
use crate::place::Place;
use crate::status::{live, now};
use crate::tables::Tables;

/// `NAMES_A_CLIENT`.
pub(crate) const NAMES_A_CLIENT: u8 = 1;

/// An open connection, or a UDP flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// `None`: its header has not come yet.
    pub client: Option<SocketAddr>,
    /// Who has connected.
    pub sender: SocketAddr,
    /// Where the sender has connected to.
    pub local: SocketAddr,
    /// A flow.
    pub is_udp: bool,
    /// Why this is the client.
    pub named: Named,
    /// The attachment of its port; `None`: the port is detached.
    pub attachment: Option<u8>,
    /// The inode of its network namespace.
    pub netns: u64,
}

/// Why the client is who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// A header names it.
    ByHeader,
    /// No header does: the sender stands for itself.
    Nobody,
    /// A header is awaited.
    Awaited,
}

/// The connections and flows with this client or sender. `None`: nothing is attached.
///
/// # Errors
/// The tables can't be read.
pub fn connections(place: &Place, asked: AskedAddress) -> Result<Option<BTreeSet<Connection>>, AttachError> {
    if !place.exists()? {
        return Ok(None);
    }
    let tables = Tables::open(place)?;
    let (netns, ports, udp_ports) = (tables.netns()?, tables.ports()?, tables.udp_ports()?);
    // In this order: a connection becomes a flow before its entry in tp_pending is removed.
    let pending = tables.pending();
    let established = tables.established();
    let named = tables.flows().into_iter().chain(established).map(|(key, flow)| of_flow(&key, &flow));
    let mut found: BTreeSet<Connection> = named.collect();
    let open: BTreeSet<_> = found.iter().map(|one| (one.sender, one.local)).collect();
    let awaited = live(pending).into_iter().map(|key| of_key(&key, None, Named::Awaited));
    found.extend(awaited.filter(|one| !open.contains(&(one.sender, one.local))));
    for one in std::mem::take(&mut found) {
        let attachment = ports.get(&one.local.port()).map(|port| port.group);
        found.insert(Connection { attachment, netns, ..one });
    }
    for (key, flow) in tables.udp_flows() {
        let silence = now().saturating_sub(Duration::from_nanos(flow.seen_ns));
        if silence <= tables.udp_silence(u8::try_from(flow.group).unwrap_or_default())? {
            let one = of_udp_flow(&key, &flow);
            let attachment = udp_ports.get(&one.local.port()).map(|port| port.port.group);
            found.insert(Connection { attachment, netns, ..one });
        }
    }
    found.retain(|one| asked.is(one.sender) || one.client.is_some_and(|client| asked.is(client)));
    Ok(Some(found))
}

fn of_flow(key: &FlowKey, flow: &RawFlow) -> Connection {
    if flow.header == NAMES_A_CLIENT && flow.client_version != 0 {
        return of_key(key, Some(address(flow.client, flow.client_port)), Named::ByHeader);
    }
    of_key(key, Some(address(key.remote, key.remote_port)), Named::Nobody)
}

fn of_key(key: &FlowKey, client: Option<SocketAddr>, named: Named) -> Connection {
    let (sender, local) = (address(key.remote, key.remote_port), address(key.local, key.local_port));
    Connection { client, sender, local, is_udp: false, named, attachment: None, netns: 0 }
}

fn of_udp_flow(key: &UdpKey, flow: &UdpFlow) -> Connection {
    let (client, sender) = (address(key.client, key.client_port), address(flow.sender, flow.sender_port));
    let named = if client == sender { Named::Nobody } else { Named::ByHeader };
    let local = address(flow.local, flow.port);
    Connection { client: Some(client), sender, local, is_udp: true, named, attachment: None, netns: 0 }
}

fn address(ip: Address, port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(ip.0).to_canonical(), u16::from_be_bytes(port))
}
