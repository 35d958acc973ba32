//! One rtnetlink socket, used synchronously: ask, read until the end, name the request in the error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;
use thiserror::Error;
use truepeer_sys::netlink::{NetlinkAnswer, NetlinkEnd};

use super::item::IpFamily;
use super::message;

/// What the kernel refused.
#[derive(Debug, Error)]
#[error("netlink: {request} failed{}", in_its_words(reason.as_deref()))]
pub struct NetlinkError {
    /// The request, in words.
    pub(crate) request: &'static str,
    /// The kernel's own words, where it gives any.
    pub(crate) reason: Option<String>,
    /// The kernel's error number.
    pub source: io::Error,
}

fn in_its_words(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(" (the kernel says {reason:?})"))
}

/// How often a list is read that changes meanwhile.
const ATTEMPTS: u32 = 10;

/// A socket that is told when a device or an address of the network namespace of the thread that opened it
/// changes.
pub struct Notices(Socket);

impl Notices {
    /// Joins the groups of devices and addresses.
    ///
    /// # Errors
    /// A failed system call on the netlink socket.
    pub fn open() -> io::Result<Self> {
        // RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR (linux/rtnetlink.h).
        const GROUPS: u32 = 0x1 | 0x10 | 0x100;
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Drops what has been told so far. Whoever is told reads the whole state again, so lost notices
    /// (ENOBUFS) don't matter.
    pub fn forget(&self) {
        let mut buffer = Vec::with_capacity(8192);
        while !matches!(self.0.recv(&mut buffer, 0), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        {
            buffer.clear();
        }
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to rtnetlink in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket; no privilege is needed for reading.
    pub fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let socket = Socket::new(NETLINK_ROUTE)?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Linux 4.20: dumps are filtered by the kernel, which matters where a router holds the
            // Internet's table; an older kernel sends all of it, and we filter
            let _ = socket.set_netlink_get_strict_chk(true);
            // Linux 4.12: the kernel says in words what it refuses.
            let _ = socket.set_ext_ack(true);
            Ok(socket)
        };
        let socket =
            open().map_err(|source| NetlinkError { request: "opening a socket", reason: None, source })?;
        Ok(Self { socket, sequence: 0 })
    }

    /// All rules of a family, in the order in which they are asked.
    ///
    /// The kernel marks a list of devices or addresses that changed while it was written (`NLM_F_DUMP_INTR`),
    /// and it is then read again. It marks no list of rules: one that changes meanwhile can lack a rule.
    pub fn rules(&mut self, family: IpFamily) -> Result<Vec<RuleMessage>, NetlinkError> {
        let mut query = RuleMessage::default();
        query.header.family = message::address_family(family);
        let found = match self.dump("listing rules", Message::GetRule(query)) {
            // A kernel without IPv6 (ipv6.disable=1) has no rules for it.
            Err(e) if e.source.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => Vec::new(),
            found => found?,
        };
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewRule(m) = m { Some(m) } else { None })
            .collect())
    }

    /// The routes of a family with this protocol number, in any table.
    pub(crate) fn routes_by(
        &mut self,
        family: IpFamily,
        protocol: u8,
    ) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut query = message::route_query(family);
        query.header.protocol = protocol.into();
        self.routes(query)
    }

    /// The routes of a family in one table.
    pub(crate) fn routes_in(
        &mut self,
        family: IpFamily,
        table: u32,
    ) -> Result<Vec<RouteMessage>, NetlinkError> {
        self.routes(message::table_query(family, table))
    }

    fn routes(&mut self, query: RouteMessage) -> Result<Vec<RouteMessage>, NetlinkError> {
        let family = query.header.address_family;
        let found = match self.dump("listing routes", Message::GetRoute(query)) {
            // a table that does not exist holds no routes
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        // A kernel without IPv6 answers with the routes of all families that it has.
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewRoute(m) = m { Some(m) } else { None })
            .filter(|route| route.header.address_family == family)
            .collect())
    }

    /// All addresses of this network namespace.
    pub fn addresses(&mut self) -> Result<Vec<AddressMessage>, NetlinkError> {
        let found = self.dump("listing addresses", Message::GetAddress(AddressMessage::default()))?;
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewAddress(m) = m { Some(m) } else { None })
            .collect())
    }

    /// All devices of this network namespace.
    pub fn links(&mut self) -> Result<Vec<LinkMessage>, NetlinkError> {
        let found = self.dump("listing devices", Message::GetLink(LinkMessage::default()))?;
        Ok(found
            .into_iter()
            .filter_map(|m| if let Message::NewLink(m) = m { Some(m) } else { None })
            .collect())
    }

    /// Which route the kernel would take; an error is its way to say "none" or "martian".
    pub fn route_for(&mut self, query: RouteMessage) -> Result<Option<RouteMessage>, NetlinkError> {
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

    /// Asks until an answer is whole: a list that changes while the kernel writes it may lack an entry.
    fn exchange(
        &mut self,
        request: &'static str,
        message: Message,
        flags: u16,
        ends_with_verdict: bool,
    ) -> Result<Vec<Message>, NetlinkError> {
        for _ in 0..ATTEMPTS {
            let answer = self.send(message.clone(), flags).and_then(|()| self.receive(ends_with_verdict));
            match answer.map_err(|source| NetlinkError { request, reason: None, source })? {
                (found, NetlinkEnd::Whole) => return Ok(found),
                (_, NetlinkEnd::Interrupted) => {}
                (_, NetlinkEnd::Refused { errno, reason }) => {
                    return Err(NetlinkError { request, reason, source: errno.into() });
                }
            }
        }
        let source =
            io::Error::other(format!("the list changed during each of {ATTEMPTS} attempts to read it"));
        Err(NetlinkError { request, reason: None, source })
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

    /// `ends_with_verdict`: an acknowledgement, an error or the end of a dump closes the answer; otherwise
    /// the first message does.
    fn receive(&self, ends_with_verdict: bool) -> io::Result<(Vec<Message>, NetlinkEnd)> {
        let (mut answer, mut found) = (NetlinkAnswer::to(self.sequence), Vec::new());
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let end = answer.on_datagram(&datagram, |message| {
                // A message that the library can't read describes somebody else's unusual rule or route, none
                // of truepeer's.
                let read = NetlinkMessage::<Message>::deserialize(message.bytes);
                if let Ok(NetlinkMessage { payload: NetlinkPayload::InnerMessage(inner), .. }) = read {
                    found.push(inner);
                }
            });
            let is_answered = !ends_with_verdict && !found.is_empty();
            if let Some(end) = end.or(is_answered.then_some(NetlinkEnd::Whole)) {
                return Ok((found, end));
            }
        }
    }
}
