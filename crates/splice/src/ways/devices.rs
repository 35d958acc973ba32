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
/// IFLA_MASTER; IFA_ADDRESS and IFA_LOCAL.
const MASTER: u16 = 10;
const ADDRESSES: [u16; 2] = [1, 2];

/// The devices of a network namespace, by index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Devices {
    present: BTreeSet<u32>,
    /// Ports of a bridge or bond, and devices of a VRF.
    ports: BTreeSet<u32>,
    /// They have gone, or have become ports. The programs are no longer attached to a device that comes back
    /// by its old index from another namespace, and a confined process can't attach them again.
    lost: BTreeSet<u32>,
    down: BTreeSet<u32>,
}

impl Devices {
    /// Reads all of them.
    ///
    /// # Errors
    /// If netlink is forbidden or fails.
    pub(super) fn read() -> Result<Self, CallError> {
        list(Family::Route, GET, &[0; LINK_LEN], |devices: &mut Self, message| {
            devices.note(message, &mut Changes::default());
            // Those that are ports at the start are none of the programs', unless they belong to a VRF and
            // stay there.
            devices.lost.clear();
        })
    }

    /// Whether the programs don't see packets of this device any more, or packets to it don't arrive.
    pub(crate) fn are_lost(&self, device: u32) -> bool {
        self.lost.contains(&device) || !self.present.contains(&device)
    }

    /// Whether nothing can leave by this device at the moment.
    pub(crate) fn is_down(&self, device: u32) -> bool {
        self.down.contains(&device) && !self.are_lost(device)
    }

    /// Notes what a message says.
    pub(super) fn note(&mut self, message: &RawMessage<'_>, changes: &mut Changes) {
        let body = message.body;
        let (Some(family), Some(index)) = (body.first(), word(body, 4)) else { return };
        let is_of_bridge = i32::from(*family) == libc::AF_BRIDGE;
        match message.kind {
            // A bridge says so of its port, and the device goes on.
            DELETED if is_of_bridge => {}
            DELETED => {
                self.present.remove(&index);
                self.lost.insert(index);
                changes.devices.insert(index);
            }
            NEW => self.on_device(index, body, changes),
            DELETED_ADDRESS => {
                changes.devices.insert(index);
                let attributes = attributes(body.get(ADDRESS_LEN..).unwrap_or_default());
                let addresses = attributes.filter(|(kind, _)| ADDRESSES.contains(kind));
                changes.addresses.extend(addresses.filter_map(|(_, ip)| ip_of(ip)));
            }
            _ => {}
        }
    }

    fn on_device(&mut self, index: u32, body: &[u8], changes: &mut Changes) {
        self.present.insert(index);
        let is_up = word(body, 8).is_some_and(|flags| flags & libc::IFF_UP.cast_unsigned() != 0);
        if is_up {
            self.down.remove(&index);
        } else {
            self.down.insert(index);
        }
        let is_port = attributes(body.get(LINK_LEN..).unwrap_or_default()).any(|(kind, _)| kind == MASTER);
        if is_port && self.ports.insert(index) {
            self.lost.insert(index);
            changes.devices.insert(index);
        }
    }
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}
