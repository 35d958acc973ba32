//! The network devices to attach to.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use netlink_packet_route::link::{
    InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use truepeer_bpf::Device;

use crate::routes::netlink::Netlink;

/// Returns the devices with these names. `all` selects every device that is up and has an address, because
/// packets for this host end there. It leaves out the ports of a bridge or bond, even with an address of their own (fe80::…): the programs
/// would see their packets twice.
pub(crate) fn find(names: &[String]) -> Result<Vec<Device>> {
    let mut netlink = Netlink::open()?;
    let with_address: BTreeSet<u32> =
        netlink.addresses()?.iter().map(|address| address.header.index).collect();
    let links = netlink.links()?;
    let is_all = |link: &LinkMessage| {
        link.header.flags.contains(LinkFlags::Up)
            && with_address.contains(&link.header.index)
            && !is_port(link)
    };
    let mut devices = BTreeSet::new();
    for name in names {
        let is_meant =
            |link: &&LinkMessage| if name == "all" { is_all(link) } else { name_of(link) == Some(name) };
        let before = devices.len();
        devices.extend(links.iter().filter(is_meant).filter_map(device));
        ensure!(
            devices.len() > before || name == "all",
            "--dev {name}: no such device in this network namespace (ip link lists them)"
        );
    }
    ensure!(!devices.is_empty(), "no device here has an address; name one with --dev");
    Ok(devices.into_iter().collect())
}

/// Whether a bridge, bond or team receives what comes in here. A VRF does not: its devices keep their packets.
fn is_port(link: &LinkMessage) -> bool {
    let infos = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos.flatten().any(|info| matches!(info, LinkInfo::PortKind(kind) if *kind != InfoPortKind::Vrf))
}

fn name_of(link: &LinkMessage) -> Option<&String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

fn device(link: &LinkMessage) -> Option<Device> {
    let has_ethernet = matches!(link.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback);
    let name = name_of(link)?.clone();
    let has_strict_rp_filter = rp_filter("all").max(rp_filter(&name)) == STRICT;
    Some(Device { name, has_ethernet, has_strict_rp_filter })
}

/// "The max value from conf/{all,interface}/rp_filter is used" (ip-sysctl).
const STRICT: u8 = 1;

/// An unreadable setting counts as 0: the kernel then drops nothing because of it.
fn rp_filter(device: &str) -> u8 {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
