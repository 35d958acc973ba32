//! Network devices: which of them packets can't pass any more as they did when truepeer started.

use std::collections::BTreeSet;
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
/// IFLA_MASTER; IFA_ADDRESS and IFA_LOCAL.
const MASTER: u16 = 10;
const ADDRESSES: [u16; 2] = [1, 2];

/// The devices that were there at the start and that packets still pass as they did then, by index. The
/// programs are on no others: a device that comes back by its old index has lost them, and a confined process
/// can't attach them again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Devices {
    present: BTreeSet<u32>,
    /// Ports of a bridge or bond, and devices of a VRF, since the start. One that becomes a port is lost.
    ports: BTreeSet<u32>,
    /// Those that were lost because they became ports.
    new_ports: BTreeSet<u32>,
    down: BTreeSet<u32>,
    /// Those with BIG TCP: the programs don't translate its packets.
    big: BTreeSet<u32>,
}

impl Devices {
    /// Reads all of them.
    ///
    /// # Errors
    /// If netlink is forbidden or fails.
    pub(super) fn read() -> Result<Self, CallError> {
        list(Family::Route, GET, &[0; LINK_LEN], |devices: &mut Self, message| {
            let Some(index) = word(message.body, 4) else { return };
            devices.present.insert(index);
            if is_port(message.body) {
                devices.ports.insert(index);
            }
            devices.set_up(index, message.body);
            if is_big(message.body) {
                devices.big.insert(index);
            }
        })
    }

    /// Whether the programs don't see packets of this device any more, or don't translate them.
    pub(crate) fn are_lost(&self, device: u32) -> bool {
        self.are_gone(device) || self.are_big(device)
    }

    /// Whether the programs don't see packets of this device any more.
    pub(super) fn are_gone(&self, device: u32) -> bool {
        !self.present.contains(&device)
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
            NEW | DELETED if !self.present.contains(&index) => {}
            // A bridge says so of its port, and the device goes on.
            DELETED if i32::from(*family) == libc::AF_BRIDGE => {}
            DELETED => self.lose(index, changes),
            NEW if is_port(body) && !self.ports.contains(&index) => {
                self.new_ports.insert(index);
                self.lose(index, changes);
            }
            NEW => self.set_up(index, body),
            DELETED_ADDRESS => {
                changes.devices.insert(index);
                let attributes = attributes(body.get(ADDRESS_LEN..).unwrap_or_default());
                let addresses = attributes.filter(|(kind, _)| ADDRESSES.contains(kind));
                changes.addresses.extend(addresses.filter_map(|(_, ip)| ip_of(ip)));
            }
            _ => {}
        }
    }

    /// After messages were lost: takes over what holds `now`.
    pub(super) fn catch_up(&mut self, now: Self, changes: &mut Changes) {
        let new_ports = &now.ports - &self.ports;
        self.new_ports.extend(&new_ports & &self.present);
        let is_lost = |index: &u32| !now.present.contains(index) || new_ports.contains(index);
        let lost: Vec<u32> = self.present.iter().copied().filter(is_lost).collect();
        lost.into_iter().for_each(|index| self.lose(index, changes));
        self.down = now.down.intersection(&self.present).copied().collect();
        self.take_sizes(&now, changes);
    }

    /// Takes over the sizes of `now`.
    pub(super) fn take_sizes(&mut self, now: &Self, changes: &mut Changes) {
        let big: BTreeSet<u32> = now.big.intersection(&self.present).copied().collect();
        changes.devices.extend(&big - &self.big);
        self.big = big;
    }

    fn lose(&mut self, index: u32, changes: &mut Changes) {
        for devices in [&mut self.present, &mut self.ports, &mut self.down, &mut self.big] {
            devices.remove(&index);
        }
        changes.devices.insert(index);
    }

    fn set_up(&mut self, index: u32, body: &[u8]) {
        if word(body, 8).is_some_and(|flags| flags & libc::IFF_UP.cast_unsigned() != 0) {
            self.down.remove(&index);
        } else {
            self.down.insert(index);
        }
    }
}

fn is_big(body: &[u8]) -> bool {
    let sizes = attributes(body.get(LINK_LEN..).unwrap_or_default()).filter(|(kind, _)| SIZES.contains(kind));
    sizes.filter_map(|(_, size)| word(size, 0)).any(|size| size > LONGEST)
}

fn is_port(body: &[u8]) -> bool {
    attributes(body.get(LINK_LEN..).unwrap_or_default()).any(|(kind, _)| kind == MASTER)
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}
