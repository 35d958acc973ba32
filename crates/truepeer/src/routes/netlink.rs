//! One rtnetlink socket, used synchronously: ask, read until the end, name the request in the error.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use thiserror::Error;

use super::item::Family;
use super::message;

/// What the kernel refused.
#[derive(Debug, Error)]
#[error("netlink: {request} failed")]
pub(crate) struct NetlinkError {
    /// The request, in words.
    pub(crate) request: &'static str,
    /// The kernel's answer.
    pub(crate) source: io::Error,
}

/// A connection to rtnetlink in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket; no privilege is needed for reading.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let socket = Socket::new(NETLINK_ROUTE)?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Linux 4.20: dumps are filtered by the kernel, which matters where a router holds the
            // Internet's table; an older kernel sends all of it, and we filter
            let _ = socket.set_netlink_get_strict_chk(true);
            Ok(socket)
        };
        let socket = open().map_err(|source| NetlinkError { request: "opening a socket", source })?;
        Ok(Self { socket, sequence: 0 })
    }

    /// All rules of a family, in the order in which they are asked.
    pub(crate) fn rules(&mut self, family: Family) -> Result<Vec<RuleMessage>, NetlinkError> {
        let mut query = RuleMessage::default();
        query.header.family = message::address_family(family);
        let found = self.dump("listing rules", Message::GetRule(query))?;
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewRule(m) = m { Some(m) } else { None })
            .collect())
    }

    /// The routes of a family with this protocol number, in any table.
    pub(crate) fn routes_by(
        &mut self,
        family: Family,
        protocol: u8,
    ) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut query = message::route_query(family);
        query.header.protocol = protocol.into();
        self.routes(query)
    }

    /// The routes of a family in one table.
    pub(crate) fn routes_in(
        &mut self,
        family: Family,
        table: u32,
    ) -> Result<Vec<RouteMessage>, NetlinkError> {
        self.routes(message::table_query(family, table))
    }

    fn routes(&mut self, query: RouteMessage) -> Result<Vec<RouteMessage>, NetlinkError> {
        let found = match self.dump("listing routes", Message::GetRoute(query)) {
            // a table that does not exist holds no routes
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewRoute(m) = m { Some(m) } else { None })
            .collect())
    }

    /// All addresses of this network namespace.
    pub(crate) fn addresses(&mut self) -> Result<Vec<AddressMessage>, NetlinkError> {
        let found = self.dump("listing addresses", Message::GetAddress(AddressMessage::default()))?;
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewAddress(m) = m { Some(m) } else { None })
            .collect())
    }

    /// All devices of this network namespace.
    pub(crate) fn links(&mut self) -> Result<Vec<LinkMessage>, NetlinkError> {
        let found = self.dump("listing devices", Message::GetLink(LinkMessage::default()))?;
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewLink(m) = m { Some(m) } else { None })
            .collect())
    }

    /// Which route the kernel would take; an error is its way to say "none" or "martian".
    pub(crate) fn route_for(&mut self, query: RouteMessage) -> Result<Option<RouteMessage>, NetlinkError> {
        let answer = self.exchange("asking for a route", Message::GetRoute(query), NLM_F_REQUEST, false)?;
        Ok(answer.into_iter().find_map(|m| if let Message::NewRoute(m) = m { Some(m) } else { None }))
    }

    /// Adds a rule, even beside one of the same meaning.
    pub(crate) fn add_rule(&mut self, rule: RuleMessage) -> Result<(), NetlinkError> {
        self.change("adding a rule", Message::NewRule(rule), NLM_F_CREATE)
    }

    /// Deletes the rule that has all these attributes.
    pub(crate) fn delete_rule(&mut self, rule: RuleMessage) -> Result<(), NetlinkError> {
        self.change("deleting a rule", Message::DelRule(rule), 0)
    }

    /// Adds a route where there is none.
    pub(crate) fn add_route(&mut self, route: RouteMessage) -> Result<(), NetlinkError> {
        self.change("adding a route", Message::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Puts a route in the place of the one with the same destination, table and metric.
    pub(crate) fn replace_route(&mut self, route: RouteMessage) -> Result<(), NetlinkError> {
        self.change("replacing a route", Message::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes the route that has all these attributes.
    pub(crate) fn delete_route(&mut self, route: RouteMessage) -> Result<(), NetlinkError> {
        self.change("deleting a route", Message::DelRoute(route), 0)
    }

    fn change(&mut self, request: &'static str, message: Message, flags: u16) -> Result<(), NetlinkError> {
        self.exchange(request, message, NLM_F_REQUEST | NLM_F_ACK | flags, true).map(drop)
    }

    fn dump(&mut self, request: &'static str, message: Message) -> Result<Vec<Message>, NetlinkError> {
        self.exchange(request, message, NLM_F_REQUEST | NLM_F_DUMP, true)
    }

    fn exchange(
        &mut self,
        request: &'static str,
        message: Message,
        flags: u16,
        ends_with_verdict: bool,
    ) -> Result<Vec<Message>, NetlinkError> {
        let sent = self.send(message, flags);
        sent.and_then(|()| self.receive(ends_with_verdict)).map_err(|source| NetlinkError { request, source })
    }

    fn send(&mut self, message: Message, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Reads answers until the verdict (an acknowledgement, an error or the end of a dump), or, where the
    /// kernel sends exactly one answer, until that.
    fn receive(&self, ends_with_verdict: bool) -> io::Result<Vec<Message>> {
        let mut found = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for bytes in Parts(&datagram) {
                // what this library can't read is somebody else's unusual rule, not ours
                let Ok(part) = NetlinkMessage::<Message>::deserialize(bytes) else { continue };
                if part.header.sequence_number != self.sequence {
                    continue;
                }
                match part.payload {
                    NetlinkPayload::InnerMessage(inner) => found.push(inner),
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                    NetlinkPayload::Error(_) => return Ok(found),
                    _ => {}
                }
            }
            if !ends_with_verdict && !found.is_empty() {
                return Ok(found);
            }
        }
    }
}

/// The messages of one datagram.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(NetlinkBuffer::new_checked(self.0).ok()?.length()).ok()?;
        let (part, rest) = self.0.split_at_checked(length)?;
        let padding = length.next_multiple_of(4) - length;
        self.0 = rest.get(padding..).unwrap_or_default();
        (!part.is_empty()).then_some(part)
    }
}
