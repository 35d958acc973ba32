//! Advice for counters whose cause an operator can remove.

use truepeer_bpf::{PortStatus, Traffic};

/// The counter of headers from addresses that `--allow` does not list.
pub(super) const HEADER_UNLISTED: &str = "header_unlisted";

const FRAGMENTS: &str = "with the header, datagrams are longer than the MTU between the sender and this host: raise it, or lower the MTU of \
     what is inside (WireGuard: 1392; clients with IPv6 addresses: 1368; spp: 1382)";

/// A line for each counter of the port that has an advice.
pub(super) fn of(port: &PortStatus) -> Vec<String> {
    if !matches!(port.traffic, Traffic::Udp(..)) {
        return Vec::new();
    }
    let all = port.counters.iter().filter(|(_, value)| *value > 0);
    all.filter_map(|(counter, _)| match counter.name {
        HEADER_UNLISTED => Some(unlisted(port.port)),
        "refused_fragment" => Some(FRAGMENTS.to_owned()),
        _ => None,
    })
    .collect()
}

/// Container engines translate addresses (NAT), and conntrack remembers the translation of a flow as long as it is used. So the entry of a sender
/// that never pauses outlives the container. It leads through the engine's own proxy, whose address is the bridge's.
pub(super) fn unlisted(port: u16) -> String {
    format!(
        "attach status --follow names the address; if it is a bridge of this host (172.17.0.1), an old conntrack entry \
         leads there: conntrack -D -p udp --dport PORT on the host, with the published port of {port}"
    )
}
