//! Converts items into netlink messages and back.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::IpProtocol;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage, RulePortRange};

use super::found::{FoundRoute, FoundRule, Memo, Tag, is_everything};
use super::item::{IpFamily, IpTransport, LocalRoute, Rule};

/// Linux: loopback is the first interface of every network namespace (`LOOPBACK_IFINDEX`).
pub(crate) const LOOPBACK_INDEX: u32 = 1;

/// The kernel's name of a family.
pub(crate) fn address_family(family: IpFamily) -> AddressFamily {
    match family {
        IpFamily::V4 => AddressFamily::Inet,
        IpFamily::V6 => AddressFamily::Inet6,
    }
}

/// A rule to be added (`priority` `None`: the kernel puts it before all others but the first) or deleted.
pub(crate) fn rule(rule: &Rule, tag: Tag, priority: Option<u32>) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(rule.family);
    message.header.action = RuleAction::ToTable;
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Table(rule.table));
    attributes.push(RuleAttribute::Protocol(tag.protocol().into()));
    attributes.extend(priority.map(RuleAttribute::Priority));
    if rule.sent_here {
        attributes.push(RuleAttribute::Iifname("lo".to_owned()));
    }
    if let Some(mark) = rule.mark {
        attributes.extend([RuleAttribute::FwMark(mark), RuleAttribute::FwMask(u32::MAX)]);
    }
    if let Some(transport) = rule.transport {
        attributes.push(RuleAttribute::IpProtocol(ip_protocol(transport)));
    }
    if let Some(ports) = &rule.source_ports {
        let range = RulePortRange { start: *ports.start(), end: *ports.end() };
        attributes.push(RuleAttribute::SourcePortRange(range));
    }
    if let Some(from) = rule.from {
        message.header.src_len = from.prefix_len();
        message.attributes.push(RuleAttribute::Source(from.addr()));
    }
    message
}

/// The `nop` rule that carries a memo. Always IPv4, which every network namespace has.
pub(crate) fn memo_rule(memo: Memo) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.action = RuleAction::Nop;
    message.attributes =
        vec![RuleAttribute::Priority(memo.priority()), RuleAttribute::Protocol(memo.tag.protocol().into())];
    message
}

/// Reads a memo, if this is one.
pub(crate) fn memo(message: &RuleMessage) -> Option<Memo> {
    if message.header.action != RuleAction::Nop {
        return None;
    }
    let priority = message.attributes.iter().find_map(|a| match a {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    })?;
    Memo::of(priority, rule_tag(message))
}

fn rule_tag(message: &RuleMessage) -> Tag {
    let protocol = message.attributes.iter().find_map(|a| match a {
        RuleAttribute::Protocol(protocol) => Some(u8::from(*protocol)),
        _ => None,
    });
    Tag::of(protocol.unwrap_or_default())
}

/// Reads a rule. `None` if it has a selector that truepeer's rules never have, or leads to no table.
pub(crate) fn found_rule(family: IpFamily, message: &RuleMessage) -> Option<FoundRule> {
    let plain = message.header.action == RuleAction::ToTable
        && message.header.tos == 0
        && message.header.dst_len == 0
        && !message.header.flags.contains(RuleFlags::Invert);
    let mut found = FoundRule {
        rule: Rule::to_table(family, message.header.table.into()),
        priority: 0,
        tag: rule_tag(message),
    };
    for attribute in &message.attributes {
        read_rule_attribute(&mut found, attribute, message.header.src_len)?;
    }
    plain.then_some(found)
}

fn read_rule_attribute(found: &mut FoundRule, attribute: &RuleAttribute, src_len: u8) -> Option<()> {
    let rule = &mut found.rule;
    match attribute {
        RuleAttribute::Priority(priority) => found.priority = *priority,
        RuleAttribute::Table(table) => rule.table = *table,
        RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
        RuleAttribute::Iifname(name) if name == "lo" => rule.sent_here = true,
        RuleAttribute::Source(ip) => {
            rule.from = Some(IpNet::new(*ip, src_len).ok()?).filter(|net| !is_everything(net));
        }
        RuleAttribute::IpProtocol(IpProtocol::Tcp) => rule.transport = Some(IpTransport::Tcp),
        RuleAttribute::IpProtocol(IpProtocol::Udp) => rule.transport = Some(IpTransport::Udp),
        RuleAttribute::SourcePortRange(range) => rule.source_ports = Some(range.start..=range.end),
        // These select nothing: no suppression, all bits of the mark, and the protocol.
        RuleAttribute::SuppressPrefixLen(u32::MAX)
        | RuleAttribute::SuppressIfGroup(u32::MAX)
        | RuleAttribute::FwMask(u32::MAX)
        | RuleAttribute::Protocol(_) => {}
        RuleAttribute::Other(nla) if is_whole_port_mask(nla) => {}
        _ => return None,
    }
    Some(())
}

/// Linux 6.15 adds a mask to a rule on a port. All ones mean the whole port, as before.
fn is_whole_port_mask(nla: &DefaultNla) -> bool {
    const FRA_SPORT_MASK: u16 = 28;
    let mut value = vec![0; nla.value_len()];
    nla.emit_value(&mut value);
    nla.kind() == FRA_SPORT_MASK && value.iter().all(|byte| *byte == u8::MAX)
}

fn ip_protocol(transport: IpTransport) -> IpProtocol {
    match transport {
        IpTransport::Tcp => IpProtocol::Tcp,
        IpTransport::Udp => IpProtocol::Udp,
    }
}

/// A local default route to be added, replaced or deleted.
pub(crate) fn route(route: &LocalRoute, tag: Tag, metric: Option<u32>) -> RouteMessage {
    let mut message = table_query(route.family, route.table);
    message.header.protocol = tag.protocol().into();
    message.header.scope = RouteScope::Host;
    message.header.kind = RouteType::Local;
    message.attributes.push(RouteAttribute::Oif(LOOPBACK_INDEX));
    message.attributes.extend(metric.map(RouteAttribute::Priority));
    message.attributes.extend(route.source.map(|ip| RouteAttribute::PrefSource(ip.into())));
    message
}

/// An empty message of a family.
pub fn route_query(family: IpFamily) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message
}

/// The same, narrowed to one table; a number above 255 fits the attribute only.
pub(crate) fn table_query(family: IpFamily, table: u32) -> RouteMessage {
    let mut message = route_query(family);
    message.header.table = u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    message.attributes.push(RouteAttribute::Table(table));
    message
}

/// Reads a local default route on loopback; `None` for all other routes.
pub(crate) fn found_route(family: IpFamily, message: &RouteMessage) -> Option<FoundRoute> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let (mut source, mut metric, mut output) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::PrefSource(address) => source = ip_of(address),
            RouteAttribute::Priority(number) => metric = Some(*number),
            RouteAttribute::Oif(index) => output = Some(*index),
            _ => {}
        }
    }
    let is_ours_in_kind = header.kind == RouteType::Local
        && header.destination_prefix_length == 0
        && output == Some(LOOPBACK_INDEX);
    let tag = Tag::of(header.protocol.into());
    is_ours_in_kind.then_some(FoundRoute { route: LocalRoute { family, table, source }, metric, tag })
}

/// The IP address in a route's attribute.
pub(crate) fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
