//! Advice for counters whose cause an operator can remove.

use truepeer_bpf::{PortStatus, Traffic};

/// The counter of headers from addresses that `--allow` does not list.
pub(super) const HEADER_UNLISTED: &str = "header_unlisted";

const UNSHOWABLE: &str = "the server listens on IPv4 (0.0.0.0), logs and bans the sender instead of an IPv6 client: let it listen on [::] \
     without IPV6_V6ONLY only, let the sender connect over IPv6, or attach with --unshowable refuse";

const UNLISTED_TCP: &str = "connections that begin with a header come from an address that --allow does not \
     list, and the server reads the header as data: attach status --follow names the address; list it if it \
     is a load balancer's";

const FRAGMENTS: &str = "with the header, datagrams are longer than the MTU between the sender and this host: raise it, or lower the MTU of \
     what is inside (WireGuard: 1392; clients with IPv6 addresses: 1368; spp: 1382)";

/// A line for each counter of the port that has an advice.
pub(super) fn of(port: &PortStatus) -> Vec<String> {
    let is_udp = matches!(port.traffic, Traffic::Udp(..));
    let all = || port.counters.iter().filter(|(_, value)| *value > 0);
    let has = |name| all().any(|(counter, _)| counter.name == name);
    let missing = (!is_udp && has("not_a_sender") && !has("connections")).then(|| {
        format!(
            "no connection came from an address that --allow lists, but some from others: ss -tn 'sport = :{}' lists them; add the sender's address to --allow",
            port.port
        )
    });
    let of_counters = all().filter_map(|(counter, _)| match counter.name {
        "client_not_showable" if !is_udp => Some(UNSHOWABLE.to_owned()),
        HEADER_UNLISTED if is_udp => Some(unlisted(port.port)),
        HEADER_UNLISTED => Some(UNLISTED_TCP.to_owned()),
        "refused_fragment" if is_udp => Some(FRAGMENTS.to_owned()),
        _ => None,
    });
    missing.into_iter().chain(of_counters).collect()
}

/// Container engines translate addresses (NAT), and conntrack remembers the translation of a flow as long as
/// it is used. So the entry of a sender that never pauses outlives the container. It leads through the
/// engine's own proxy, whose address is the bridge's.
pub(super) fn unlisted(port: u16) -> String {
    format!(
        "attach status --follow names the address; if it is a bridge of this host (172.17.0.1), an old conntrack entry \
         leads there: conntrack -D -p udp --dport PORT on the host, with the published port of {port}"
    )
}
