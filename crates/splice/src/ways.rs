//! Routing rules, IPsec policies, devices and the firewall: whether translated packets of TCP or UDP take the
//! route of a socket's, and nothing else would have been done to them.
//!
//! bpf_redirect_neigh() looks the route up by addresses and device alone, and bypasses IPsec. So a session
//! stays in user space where the route depends on anything else. When a device or an address changes, the
//! peers of sessions that have left are asked; an IPsec policy, or a rule that asks for more, ends these
//! sessions when it comes.

mod devices;
mod firewall;
mod policies;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use truepeer_sys::notices::{Family, Notices};

pub(crate) use self::devices::Devices;
use self::firewall::Firewall;
use self::policies::Policies;
use self::rules::Rules;
use crate::StaysHere;

/// IPPROTO_*.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// linux/rtnetlink.h: RTM_NEWRULE, RTM_DELRULE.
const NEW_RULE: u16 = 32;
const DELETED_RULE: u16 = 33;
/// Bits of RTMGRP_*: devices, addresses of both families, rules of both.
const LINKS: u32 = 1;
const ADDRESSES: u32 = 1 << 4 | 1 << 8;
const RULES: u32 = 1 << 7 | 1 << 18;

/// How often the devices' largest packets are read while sessions leave or have left: the kernel tells nobody
/// of a change (do_setlink() in net/core/rtnetlink.c).
const SIZES_EVERY: Duration = Duration::from_secs(1);

/// The ways of a network namespace's packets, as far as they decide about sessions.
#[derive(Debug)]
pub struct Ways(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// Of the packets.
    protocol: u8,
    /// `None`: netlink is forbidden (RestrictAddressFamilies in a unit), so nothing is known.
    notices: Option<Notices>,
    rules: Option<Rules>,
    policies: Policies,
    firewall: Firewall,
    /// `None`: they could not be read at the start.
    devices: Option<Devices>,
    sizes_read: Instant,
    changes: Changes,
}

/// What has changed under sessions that have left.
#[derive(Debug, Default)]
pub struct Changes {
    /// Devices that have lost an address, have ended or became another one's port.
    devices: BTreeSet<u32>,
    /// Addresses of this host that have moved or gone.
    addresses: BTreeSet<IpAddr>,
    /// All sessions may be concerned.
    is_all: bool,
    /// IPsec policies were added, which translated packets would bypass.
    pub are_encrypted: bool,
    /// Rules were added that ask for more than addresses: a socket's packets may take another way now.
    pub are_ruled: bool,
    /// The firewall's rules are others.
    pub are_filtered: bool,
}

impl Changes {
    /// Whether nothing has changed about the ways of packets.
    #[must_use]
    pub fn are_none(&self) -> bool {
        let end_all = self.are_encrypted || self.are_ruled;
        self.devices.is_empty() && self.addresses.is_empty() && !(self.is_all || end_all)
    }

    /// Whether they concern the connection of this address of ours that leaves by this device.
    #[must_use]
    pub fn concern(&self, own: IpAddr, device: u32) -> bool {
        self.is_all || self.devices.contains(&device) || self.addresses.contains(&own)
    }
}

impl Ways {
    /// Of TCP, in the calling thread's network namespace. Call it with CAP_NET_ADMIN: otherwise IPsec
    /// policies can't be listed, and all sessions stay.
    #[must_use]
    pub fn open() -> Self {
        Self::of(TCP)
    }

    /// Likewise, of UDP.
    #[must_use]
    pub fn of_udp() -> Self {
        Self::of(UDP)
    }

    fn of(protocol: u8) -> Self {
        // Before the lists are read: whatever changes meanwhile is heard of.
        let notices = Notices::of(Family::Route, LINKS | ADDRESSES | RULES).ok();
        let rules = Rules::read(protocol).ok();
        let (policies, firewall) = (Policies::open(), Firewall::open(protocol));
        // An earlier process may have left sessions that what stands now concerns.
        let changes = Changes {
            are_filtered: true,
            are_encrypted: policies.are_any() == Some(true),
            are_ruled: rules.as_ref().is_some_and(Rules::decide_by_more_than_addresses),
            ..Changes::default()
        };
        let devices = Devices::read().ok();
        let sizes_read = Instant::now();
        let known = Known { protocol, notices, rules, policies, firewall, devices, sizes_read, changes };
        Self(Mutex::new(known))
    }

    /// Whether a session between these ends may leave, by what stands at this moment. Returns how many
    /// devices were lost so far.
    ///
    /// # Errors
    /// Why it stays.
    pub fn may_offload(&self, ends: &[SocketAddr]) -> Result<u64, StaysHere> {
        self.with(|known| Ok(known.may_offload(ends)?.losses()))
    }

    /// As [`Ways::may_offload`], for a flow whose datagrams come in by this device.
    ///
    /// # Errors
    /// Why it stays.
    pub fn may_offload_from(&self, ends: &[SocketAddr], device: u32) -> Result<(), StaysHere> {
        self.with(|known| {
            let is_gone = known.may_offload(ends)?.are_gone(device);
            if is_gone { Err(StaysHere::Device) } else { Ok(()) }
        })
    }

    /// Devices that have become ports of others. Packets still pass them, but no route leads by them any
    /// more.
    pub fn new_ports(&self) -> Vec<u32> {
        self.with(|known| known.devices.iter().flat_map(Devices::new_ports).collect())
    }

    /// As [`Ways::may_offload`], for a session whose packets leave by these devices. The programs have met
    /// them there after so many `losses`.
    ///
    /// # Errors
    /// Why it stays.
    pub(crate) fn may_offload_by(
        &self,
        ends: &[SocketAddr],
        devices: [u32; 2],
        losses: u64,
    ) -> Result<(), StaysHere> {
        self.with(|known| {
            known.read_sizes();
            let known = known.may_offload(ends)?;
            if devices.iter().any(|device| known.are_big(*device)) {
                return Err(StaysHere::BigTcp);
            }
            let is_lost = |device| known.are_lost(device) || known.were_lost_since(device, losses);
            if devices.into_iter().any(is_lost) { Err(StaysHere::Device) } else { Ok(()) }
        })
    }

    /// Whether the firewall could do something to packets of any session, or is unknown.
    pub fn are_any_filtered(&self) -> bool {
        self.with(|known| !known.firewall.is_free())
    }

    /// Whether the firewall could do something to packets of a session between these ends, or is unknown.
    pub(crate) fn are_filtered(&self, ends: &[SocketAddr]) -> bool {
        self.with(|known| known.firewall.may_act(ends) != Some(false))
    }

    /// Whether anything has changed since the last call that may concern packets that are translated.
    pub fn have_changed(&self) -> bool {
        let (changes, _) = self.changes(false);
        !changes.are_none() || changes.are_filtered
    }

    /// Returns the changes since the last call, and the present devices (`None`: they are unknown).
    /// `are_any`: whether any session has left.
    pub(crate) fn changes(&self, are_any: bool) -> (Changes, Option<Devices>) {
        self.with(|known| {
            if are_any {
                known.read_sizes();
            }
            (std::mem::take(&mut known.changes), known.devices.clone())
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.hear();
        work(&mut known)
    }
}

impl Known {
    fn may_offload(&mut self, ends: &[SocketAddr]) -> Result<&Devices, StaysHere> {
        let devices = self.devices.as_ref().filter(|_| self.notices.is_some());
        let (Some(devices), Some(rules)) = (devices, &self.rules) else { return Err(StaysHere::WaysUnknown) };
        if rules.decide_by_more_than_addresses() {
            return Err(StaysHere::Rules);
        }
        match self.policies.are_any() {
            Some(false) => {}
            Some(true) => return Err(StaysHere::Ipsec),
            None => return Err(StaysHere::WaysUnknown),
        }
        match self.firewall.may_act(ends) {
            Some(false) => Ok(devices),
            Some(true) => Err(StaysHere::Firewall),
            None => Err(StaysHere::WaysUnknown),
        }
    }

    fn read_sizes(&mut self) {
        if self.sizes_read.elapsed() < SIZES_EVERY {
            return;
        }
        self.sizes_read = Instant::now();
        if let (Some(devices), Ok(now)) = (&mut self.devices, Devices::read()) {
            devices.take_sizes(&now, &mut self.changes);
        }
    }

    fn hear(&mut self) {
        self.changes.are_filtered |= self.firewall.hear();
        let Some(notices) = &mut self.notices else { return };
        let (devices, changes) = (&mut self.devices, &mut self.changes);
        let mut are_rules_other = false;
        let are_whole = notices.read(|message| match message.kind {
            NEW_RULE | DELETED_RULE => are_rules_other = true,
            _ => {
                if let Some(devices) = devices.as_mut() {
                    devices.note(message, changes);
                }
            }
        });
        if !are_whole {
            // A device may have been deleted and made anew meanwhile: every session is asked.
            changes.is_all = true;
            if let (Some(devices), Ok(now)) = (devices, Devices::read()) {
                devices.catch_up(now);
            }
        }
        if are_rules_other || !are_whole || self.rules.is_none() {
            let before = self.rules.take().unwrap_or_default();
            // If it fails, sessions stay, and it is read again next time.
            self.rules = Rules::read(self.protocol).ok();
            self.changes.are_ruled |= self.rules.as_ref().is_some_and(|rules| rules.have_more_than(&before));
        }
        self.changes.are_encrypted |= self.policies.hear();
    }
}
