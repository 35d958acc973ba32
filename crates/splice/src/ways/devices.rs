//! Network devices: which of them packets can't pass as they did when a session began to leave.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use truepeer_sys::CallError;
use truepeer_sys::netlink::RawMessage;
use truepeer_sys::notices::{Family, attributes, list, word};

use super::Changes;

/// linux/rtnetlink.h: RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_DELADDR.
const NEW: u16 = 16;
const DELETED: u16 = 17;
const GET: u16 = 18;
const DELETED_ADDRESS: u16 = 21;
/// The lengths of `struct ifinfomsg` and `struct ifaddrmsg`. Both have the device's index at 4.
const LINK_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;
/// IFLA_GSO_MAX_SIZE, GRO_MAX_SIZE, GSO_IPV4_MAX_SIZE, GRO_IPV4_MAX_SIZE.
const SIZES: [u16; 4] = [41, 58, 63, 64];
/// The longest packet without BIG TCP.
const LONGEST: u32 = 65_536;
/// IFLA_MASTER; IFLA_LINKINFO, and in it IFLA_INFO_SLAVE_KIND; IFA_ADDRESS and IFA_LOCAL.
const MASTER: u16 = 10;
const INFO: u16 = 18;
const PORT_KIND: u16 = 4;
const ADDRESSES: [u16; 2] = [1, 2];

/// So many losses are remembered, each with its device.
const MOST_LOSSES: usize = 4096;

/// The devices that are there, by index, and those that were lost: deleted, or made another one's port. A
/// device that comes back by its old index has lost the programs. They are attached again
/// ([`truepeer_bpf::Follower`]), and a session that begins to leave after that knows by its own packets that
/// they are there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Devices {
    present: BTreeSet<u32>,
    /// Ports of a bridge or bond. The devices of a VRF are none: routes lead by them.
    ports: BTreeSet<u32>,
    /// Those that have been up and no port, so they may have the programs.
    used: BTreeSet<u32>,
    /// Those that have become ports since.
    new_ports: BTreeSet<u32>,
    down: BTreeSet<u32>,
    /// Those with BIG TCP: the programs don't translate its packets.
    big: BTreeSet<u32>,
    /// The number of each device's last loss.
    lost: BTreeMap<u32, u64>,
    /// Of all devices: those with a number up to this one are not in `lost` any more.
    forgotten: u64,
    losses: u64,
}

impl Devices {
    /// Reads all of them.
    ///
    /// # Errors
    /// If netlink is forbidden or fails.
    pub(super) fn read() -> Result<Self, CallError> {
        list(Family::Route, GET, &[0; LINK_LEN], |devices: &mut Self, message| {
            let Some(index) = word(message.body, 4) else { return };
            devices.take(index, message.body);
        })
    }

    /// Whether nothing can be sent by this device, or the programs don't translate its packets.
    pub(crate) fn are_lost(&self, device: u32) -> bool {
        self.are_gone(device) || self.are_big(device)
    }

    /// Whether it is not there, or no route leads by it any more.
    pub(super) fn are_gone(&self, device: u32) -> bool {
        !self.present.contains(&device) || self.new_ports.contains(&device)
    }

    /// How many devices were lost so far.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Whether this device was lost after so many losses: the programs that a session has met there then may
    /// be gone with it.
    pub(super) fn were_lost_since(&self, device: u32, losses: u64) -> bool {
        self.forgotten > losses || self.lost.get(&device).is_some_and(|number| *number > losses)
    }

    pub(super) fn new_ports(&self) -> impl Iterator<Item = u32> {
        self.new_ports.iter().copied()
    }

    /// Whether this device may have packets of more than 64 KiB.
    pub(crate) fn are_big(&self, device: u32) -> bool {
        self.big.contains(&device)
    }

    /// Whether nothing can leave by this device at the moment.
    pub(crate) fn is_down(&self, device: u32) -> bool {
        self.down.contains(&device)
    }

    /// Notes what a message says.
    pub(super) fn note(&mut self, message: &RawMessage<'_>, changes: &mut Changes) {
        let body = message.body;
        let (Some(family), Some(index)) = (body.first(), word(body, 4)) else { return };
        match message.kind {
            // A bridge says so of its port, and the device goes on.
            NEW | DELETED if i32::from(*family) == libc::AF_BRIDGE => {}
            DELETED => self.lose(index, changes),
            NEW if self.take(index, body) => self.note_loss(index, changes),
            DELETED_ADDRESS => {
                changes.devices.insert(index);
                let attributes = attributes(body.get(ADDRESS_LEN..).unwrap_or_default());
                let addresses = attributes.filter(|(kind, _)| ADDRESSES.contains(kind));
                changes.addresses.extend(addresses.filter_map(|(_, ip)| ip_of(ip)));
            }
            _ => {}
        }
    }

    /// After messages were lost: takes over what holds `now`. Any device may have been lost meanwhile.
    pub(super) fn catch_up(&mut self, now: Self) {
        let before = std::mem::replace(self, now);
        self.new_ports = before.used.intersection(&self.ports).copied().collect();
        self.used.extend(before.used.intersection(&self.present));
        self.losses = before.losses + 1;
        self.forgotten = self.losses;
    }

    /// Takes over the sizes of `now`.
    pub(super) fn take_sizes(&mut self, now: &Self, changes: &mut Changes) {
        let big: BTreeSet<u32> = now.big.intersection(&self.present).copied().collect();
        changes.devices.extend(&big - &self.big);
        self.big = big;
    }

    fn lose(&mut self, index: u32, changes: &mut Changes) {
        if self.used.remove(&index) {
            self.note_loss(index, changes);
        }
        for devices in
            [&mut self.present, &mut self.ports, &mut self.new_ports, &mut self.down, &mut self.big]
        {
            devices.remove(&index);
        }
    }

    fn note_loss(&mut self, index: u32, changes: &mut Changes) {
        self.losses += 1;
        if self.lost.len() >= MOST_LOSSES {
            self.lost.clear();
            self.forgotten = self.losses;
        }
        self.lost.insert(index, self.losses);
        changes.devices.insert(index);
    }

    /// Takes over what a message says of a device. Returns whether it is lost, because it has become a port.
    fn take(&mut self, index: u32, body: &[u8]) -> bool {
        let is_port = is_port(body);
        if self.present.insert(index) && is_big(body) {
            self.big.insert(index);
        }
        if word(body, 8).is_some_and(|flags| flags & libc::IFF_UP.cast_unsigned() != 0) {
            self.down.remove(&index);
            if !is_port {
                self.used.insert(index);
            }
        } else {
            self.down.insert(index);
        }
        if is_port {
            self.ports.insert(index) && self.used.contains(&index) && self.new_ports.insert(index)
        } else {
            self.ports.remove(&index);
            self.new_ports.remove(&index);
            false
        }
    }
}

fn is_big(body: &[u8]) -> bool {
    let sizes = attributes(body.get(LINK_LEN..).unwrap_or_default()).filter(|(kind, _)| SIZES.contains(kind));
    sizes.filter_map(|(_, size)| word(size, 0)).any(|size| size > LONGEST)
}

fn is_port(body: &[u8]) -> bool {
    let of_link = || attributes(body.get(LINK_LEN..).unwrap_or_default());
    let mut infos = of_link().filter(|(kind, _)| *kind == INFO).flat_map(|(_, infos)| attributes(infos));
    of_link().any(|(kind, _)| kind == MASTER)
        && !infos.any(|(kind, of)| kind == PORT_KIND && of.starts_with(b"vrf\0"))
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}
