//! Checks that replies are routed back. It asks the kernel for the route, because another rule may precede
//! truepeer's.

use std::net::IpAddr;

use anyhow::Result;
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteType};

use super::probe;
use super::report::{Check, Report, Verdict};
use super::subject::Subject;
use truepeer_routes::apply;
use truepeer_routes::found::Tag;
use truepeer_routes::item::{IpFamily, IpTransport, Need, Rule, TABLE_MAIN};
use truepeer_routes::kernel::KernelRoutes;
use truepeer_routes::message;
use truepeer_routes::netlink::Netlink;
use truepeer_routes::place::BackendPlace;
use truepeer_routes::print::apply_command;
use truepeer_routes::print::command;
use truepeer_routes::sysctl;

pub(super) fn examine(subject: &Subject<'_>, report: &mut Report) -> Result<()> {
    let mut netlink = Netlink::open()?;
    let kernel = KernelRoutes::read(&mut netlink, apply::table_of(&subject.plan))?;
    let mut complete = true;
    for item in subject.plan.items.iter().filter(|item| apply::void(&item.need).is_none()) {
        let check = present(subject, &kernel, &item.need);
        complete &= check.verdict == Verdict::Ok;
        report.add(check);
    }
    if complete {
        for item in &subject.plan.items {
            if let Need::Rule(rule) = &item.need
                && apply::void(&item.need).is_none()
                && let Some(check) = taken(subject, &mut netlink, rule)
            {
                report.add(check);
            }
        }
    }
    for check in [source_validation(subject), reverse_path(subject, &mut netlink), localnet(subject)] {
        check.into_iter().for_each(|check| report.add(check));
    }
    Ok(())
}

fn present(subject: &Subject<'_>, kernel: &KernelRoutes, need: &Need) -> Check {
    let tried = command(need);
    match kernel.satisfied_by(need) {
        Some(Tag::Foreign) => Check::ok("routes", tried).found("there, not made by truepeer"),
        Some(_) => Check::ok("routes", tried).found("there"),
        None => {
            let found = if subject.options.with_routes {
                "missing, and it could not be made"
            } else {
                "missing (truepeer proxy creates it if permitted; test it with truepeer doctor --try)"
            };
            Check::fail("routes", tried, found).mend(apply_command(&subject.setup))
        }
    }
}

/// Asks for the route of a packet that the rule is meant for; another rule may stand before it.
fn taken(subject: &Subject<'_>, netlink: &mut Netlink, rule: &Rule) -> Option<Check> {
    let from = rule.from.map(|net| net.addr()).filter(|ip| !ip.is_unspecified());
    let input = match (rule.table, rule.sent_here, from) {
        (TABLE_MAIN, _, _) | (_, false, None) => return None,
        (_, false, Some(backend)) => Some(interface_to(netlink, backend)?),
        (_, true, _) => None,
    };
    let client = rule.family.example_client();
    let sender = from.map_or("an unbound socket".to_owned(), |ip| ip.to_string());
    let tried = format!("the kernel's route from {sender} to {client}{}", selectors(rule));
    let answer = netlink.route_for(question(rule, from, input));
    Some(match answer {
        Ok(Some(route)) if leads_here(&route, rule.table) => {
            Check::ok("route_taken", tried).found(format!("local, by table {}", rule.table))
        }
        Ok(Some(route)) => shadowed(subject, tried, format!("it goes by table {}", table_of(&route))),
        Ok(None) => shadowed(subject, tried, "there is none".to_owned()),
        Err(error) => shadowed(subject, tried, format!("there is none ({})", error.source)),
    })
}

/// New rules go before all others, so making them anew mends it.
fn shadowed(subject: &Subject<'_>, tried: String, found: String) -> Check {
    let found = format!("{found}: another rule stands before truepeer's (ip rule)");
    let mend = format!("truepeer routes remove --force && {}", apply_command(&subject.setup));
    Check::fail("route_taken", tried, found).mend(mend)
}

fn selectors(rule: &Rule) -> String {
    let mark = rule.mark.map(|mark| format!(" with mark {mark}"));
    let port = rule.source_ports.as_ref().map(|ports| format!(" from port {}", ports.start()));
    [mark, port].into_iter().flatten().collect()
}

fn question(rule: &Rule, from: Option<IpAddr>, input: Option<u32>) -> RouteMessage {
    let mut query = message::route_query(rule.family);
    let bits = if rule.family == IpFamily::V4 { 32 } else { 128 };
    query.header.destination_prefix_length = bits;
    if rule.family == IpFamily::V4 {
        // else IPv4 answers "main", whichever table it was; IPv6 always tells, and refuses the flag
        query.header.flags = RouteFlags::LookupTable;
    }
    query.attributes.push(RouteAttribute::Destination(rule.family.example_client().into()));
    if let Some(from) = from {
        query.header.source_prefix_length = bits;
        query.attributes.push(RouteAttribute::Source(from.into()));
    }
    query.attributes.extend(input.map(RouteAttribute::Iif));
    query.attributes.extend(rule.mark.map(RouteAttribute::Mark));
    if let Some(transport) = rule.transport {
        let number = if transport == IpTransport::Tcp { 6 } else { 17 };
        query.attributes.push(RouteAttribute::IpProto(number));
    }
    query.attributes.extend(rule.source_ports.as_ref().map(|ports| RouteAttribute::Sport(*ports.start())));
    query
}

fn leads_here(route: &RouteMessage, table: u32) -> bool {
    route.header.kind == RouteType::Local && table_of(route) == table
}

fn table_of(route: &RouteMessage) -> u32 {
    let table = |a: &RouteAttribute| if let RouteAttribute::Table(table) = a { Some(*table) } else { None };
    route.attributes.iter().find_map(table).unwrap_or_else(|| route.header.table.into())
}

/// The interface over which an address is reached, and on which its replies should arrive.
fn interface_to(netlink: &mut Netlink, address: IpAddr) -> Option<u32> {
    let mut query = message::route_query(IpFamily::of(address));
    query.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
    query.attributes.push(RouteAttribute::Destination(address.into()));
    let route = netlink.route_for(query).ok()??;
    route.attributes.iter().find_map(|a| if let RouteAttribute::Oif(index) = a { Some(*index) } else { None })
}

/// With `src_valid_mark`, IPv4 checks a packet's source by the rules for its mark: TPROXY's mark leads all
/// sources to this machine, so all are martians, even with rp_filter off (`__fib_validate_source`).
fn source_validation(subject: &Subject<'_>) -> Option<Check> {
    if subject.setup.tproxy.is_empty() {
        return None;
    }
    let tried = "packets marked for TPROXY pass the source check (src_valid_mark)";
    let strict: Vec<String> = interfaces_with("src_valid_mark", 1);
    Some(match strict.first() {
        None => Check::ok("src_valid_mark", tried),
        Some(first) => Check::fail("src_valid_mark", tried, format!("it is 1 for {}", strict.join(", ")))
            .mend(format!("sysctl -w net.ipv4.conf.{first}.src_valid_mark=0")),
    })
}

/// Strict filtering wants replies on the interface by which the backend is reached; on loopback it never
/// matters.
fn reverse_path(subject: &Subject<'_>, netlink: &mut Netlink) -> Option<Check> {
    let backend = subject
        .setup
        .backends
        .iter()
        .find(|b| b.place == BackendPlace::Elsewhere && b.net.addr().is_ipv4())?;
    let interface = probe::interface_name(interface_to(netlink, backend.net.addr())?)?;
    let tried = format!("rp_filter on {interface}, where replies of {} arrive", backend.net.addr());
    let of = |name: &str| {
        sysctl::read_named(&format!("net.ipv4.conf.{}.rp_filter", name.replace('.', "/"))).unwrap_or_default()
    };
    // ip-sysctl: the larger of the two settings applies.
    Some(match of("all").max(of(&interface)) {
        1 => {
            let found = "strict: replies that arrive on another interface are dropped";
            Check::note("rp_filter", tried, found)
                .mend(format!("sysctl -w net.ipv4.conf.{interface}.rp_filter=2"))
        }
        _ => Check::ok("rp_filter", tried).found("not strict"),
    })
}

/// With `route_localnet`, hosts on that link reach backends on 127.0.0.0/8 directly.
fn localnet(subject: &Subject<'_>) -> Option<Check> {
    let open: Vec<String> = interfaces_with("route_localnet", 1);
    let first = open.iter().find(|name| *name != "lo")?;
    subject.has_backend(IpFamily::V4, BackendPlace::Loopback).then(|| {
        let found =
            format!("route_localnet=1 on {}: hosts there may reach it without truepeer", open.join(", "));
        Check::note("route_localnet", "the backend on loopback is out of others' reach", found)
            .mend(format!("sysctl -w net.ipv4.conf.{first}.route_localnet=0"))
    })
}

/// The interfaces (and `all`) whose IPv4 setting has this value.
fn interfaces_with(setting: &str, value: i64) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc/sys/net/ipv4/conf") else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != "default")
        .filter(|name| {
            sysctl::read_named(&format!("net.ipv4.conf.{}.{setting}", name.replace('.', "/"))) == Some(value)
        })
        .collect();
    names.sort();
    names
}
