//! Addresses and ports in other notations.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// `udp/53`, `8000..8010`, `0.0.0.0:443`, a URL's port.
pub(super) fn ports(lower: &str) -> Vec<String> {
    let mut all = Vec::new();
    let is_number = |text: &&str| text.parse::<u16>().is_ok();
    for (name, behind) in [("udp", "/udp"), ("tcp", "")] {
        let rest = lower.strip_prefix(name).or_else(|| lower.strip_suffix(name));
        let port = rest.map(|rest| rest.trim_matches([' ', '/', ':', '-', '.', ',']));
        all.extend(port.filter(is_number).map(|port| format!("{port}{behind}")));
    }
    all.extend(lower.split_once('/').filter(|(port, _)| is_number(port)).map(|(port, _)| port.to_owned()));
    for between in ["...", "..", " - ", " to ", "–", ":"] {
        let range = lower.split_once(between).filter(|(first, last)| is_number(first) && is_number(last));
        all.extend(range.map(|(first, last)| match first == last {
            true => first.to_owned(),
            false => format!("{first}-{last}"),
        }));
    }
    if let Some((scheme, rest)) = lower.split_once("://") {
        let host = rest.split('/').next().unwrap_or(rest);
        all.extend(host.rsplit_once(':').map(|(_, port)| port.to_owned()));
        all.extend(usual_port(scheme).map(|port| port.to_string()));
    }
    let is_host =
        |host: &str| host.is_empty() || host.contains(['.', ':', '*', ']']) || host.parse::<u16>().is_ok();
    all.extend(lower.rsplit_once(':').filter(|(host, _)| is_host(host)).map(|(_, port)| port.to_owned()));
    all.extend(lower.strip_prefix("port").map(|rest| rest.trim_matches([' ', '=', ':']).to_owned()));
    all
}

/// The port of a URL without one.
fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// A URL for an address, or the reverse; IPv6 without brackets; a port alone; an address with a port too many.
pub(super) fn addresses(text: &str, option: &str) -> Vec<String> {
    let (scheme, host) = text.split_once("://").map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
    let mut all = vec![];
    // `http//app:80`, `http:app:80`
    let rest = text.strip_prefix("http").filter(|_| scheme.is_none());
    all.extend(rest.map(|rest| {
        let host = rest.trim_start_matches(['s', ':', '/']);
        format!("http{}://{host}", if rest.starts_with('s') { "s" } else { "" })
    }));
    all.extend(host.split_once('/').map(|(host, port)| format!("{host}:{port}")));
    let host = host.split('/').next().unwrap_or(host);
    let (address, port) =
        host.rsplit_once([':', ' ', '#']).map_or((host, ""), |(address, port)| (address.trim(), port));
    let is_port = port.parse::<u16>().is_ok();
    if address.parse::<Ipv6Addr>().is_ok() && is_port {
        all.push(format!("[{address}]:{port}"));
    }
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<Ipv4Addr>().is_ok() && is_port {
        all.push(format!("{bare}:{port}"));
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        all.push(format!("[{host}]"));
    }
    all.extend(usual_port(port).map(|port| format!("{address}:{port}")));
    if let Some(port) = scheme.and_then(usual_port).filter(|_| !is_port) {
        all.push(format!("{host}:{port}"));
    }
    let here = if option == "ipv6" { "[::1]" } else { "127.0.0.1" };
    if address == "localhost" && is_port {
        all.push(format!("{here}:{port}"));
    }
    let hosts = [
        host.to_owned(),
        format!("{address}:{port}"),
        format!(":{host}"),
        format!("{here}:{host}"),
        if host.starts_with(':') { format!("{here}{host}") } else { String::new() },
    ];
    let is_address =
        |host: &&String| host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    all.extend(hosts.iter().filter(is_address).cloned());
    let scheme = if scheme == Some("https") { "https" } else { "http" };
    let urls = hosts.iter().map(|host| format!("{scheme}://{host}"));
    all.extend(urls.filter(|_| option.starts_with("origin")));
    if is_port {
        all.push(bare.to_owned());
    }
    if text.contains("://") {
        all.push(host.to_owned());
    }
    all
}

/// Listeners that a line may have for a range of ports.
pub(super) const MOST_LISTENERS: usize = 16;

/// `10.0.0.5:8000-8003`: the host, and the ports.
pub(super) fn range(text: &str) -> Option<(&str, RangeInclusive<u16>)> {
    let (host, ports) = text.rsplit_once(':').unwrap_or(("", text));
    let (first, last) = ports.split_once('-')?;
    let ports = first.parse().ok()?..=last.parse().ok()?;
    (!ports.is_empty()).then_some((host, ports))
}
