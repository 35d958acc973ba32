//! The network devices to attach to.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use netlink_packet_route::link::{
    InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use truepeer_bpf::{Device, Place, covered_devices};

use truepeer_routes::netlink::Netlink;

/// The devices with these names. `all` are all that carry IP packets, also those that are down or have no
/// address yet. It leaves out the ports of a bridge or bond, even with an address of their own (fe80::…):
/// their packets come in by the bridge or bond, too.
pub(super) fn find(names: &[String]) -> Result<Vec<Device>> {
    let found = existing(names)?;
    for name in names.iter().filter(|name| *name != "all") {
        ensure!(
            found.iter().any(|device| device.name == *name),
            "--dev {name}: no such device in this network namespace (ip link lists them)"
        );
    }
    Ok(found)
}

/// Those that exist by now.
pub(super) fn existing(names: &[String]) -> Result<Vec<Device>> {
    Ok(numbered(names)?.into_iter().map(|(_, device)| device).collect())
}

/// Those that have the programs already.
pub(super) fn covered(place: &Place) -> Result<Vec<Device>> {
    let Some(numbers) = covered_devices(place)? else { return Ok(Vec::new()) };
    Ok(Links::read()?
        .all
        .iter()
        .filter(|link| numbers.contains(&link.header.index))
        .filter_map(device)
        .collect())
}

/// With their numbers: a device that is made anew has another one.
pub(super) fn numbered(names: &[String]) -> Result<Vec<(u32, Device)>> {
    let links = Links::read()?;
    let is_meant = |link: &&LinkMessage| {
        names.iter().any(|name| {
            if name == "all" { links.carries_ip(link) && !is_port(link) } else { name_of(link) == Some(name) }
        })
    };
    let found = links.all.iter().filter(is_meant);
    let mut found: Vec<_> = found.filter_map(|link| Some((link.header.index, device(link)?))).collect();
    found.sort_by(|one, other| one.1.cmp(&other.1));
    Ok(found)
}

/// Those that are up and have an address, except the ports of a bridge or bond; by name.
pub fn in_use() -> Result<Vec<Device>> {
    let devices: BTreeSet<_> = Links::read()?.in_use().filter_map(device).collect();
    Ok(devices.into_iter().collect())
}

/// The names of devices in use without the programs; none where the kernel can't tell (before Linux 6.6).
pub(super) fn uncovered(place: &Place) -> Result<Vec<String>> {
    covered_devices(place)?.map_or(Ok(Vec::new()), |covered| in_use_beside(&covered))
}

/// The names of devices in use whose numbers are not among these.
pub(super) fn in_use_beside(covered: &BTreeSet<u32>) -> Result<Vec<String>> {
    let links = Links::read()?;
    let beside = links.in_use().filter(|link| !covered.contains(&link.header.index));
    Ok(beside.filter_map(name_of).cloned().collect())
}

struct Links {
    all: Vec<LinkMessage>,
    with_address: BTreeSet<u32>,
}

impl Links {
    fn read() -> Result<Self> {
        let mut netlink = Netlink::open()?;
        let with_address = netlink.addresses()?.iter().map(|address| address.header.index).collect();
        Ok(Self { all: netlink.links()?, with_address })
    }

    fn in_use(&self) -> impl Iterator<Item = &LinkMessage> {
        let has_address = |link: &&LinkMessage| self.with_address.contains(&link.header.index);
        let is_up = |link: &&LinkMessage| link.header.flags.contains(LinkFlags::Up);
        self.all.iter().filter(has_address).filter(is_up).filter(|link| !is_port(link))
    }

    /// By its kind, if it has no address yet: others (CAN, monitors of netlink and radio) have none ever.
    fn carries_ip(&self, link: &LinkMessage) -> bool {
        use LinkLayerType::{
            Ether, Infiniband, Ip6gre, Ipgre, Loopback, None, Ppp, Rawip, Sit, Tunnel, Tunnel6,
        };
        let kind = link.header.link_layer_type;
        let is_known = matches!(
            kind,
            Ether | Infiniband | Ip6gre | Ipgre | Loopback | None | Ppp | Rawip | Sit | Tunnel | Tunnel6
        );
        is_known || self.with_address.contains(&link.header.index)
    }
}

/// Whether a bridge, bond or team receives what comes in here. A VRF does not: its devices keep their
/// packets.
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
