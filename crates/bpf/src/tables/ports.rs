//! Which ports are attached: their state, group and counters, and the backends of UDP ports.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{MapError, PerCpuValues};
use aya::util::nr_cpus;
use truepeer_policy::Dialect;

use super::{ATTACHED, COUNTERS_LEN, DRAINING, PAUSED, REFUSING, Tables, proofs};
use crate::counters::COUNTERS;
use crate::error::AttachError;
use crate::groups::MAX_GROUPS;
use crate::layout::{Backend, MAX_PORTS, MAX_SLOTS, Port, RawUdpPort};
use crate::ports::PortRange;
use crate::rules;
use crate::rules::{NewConnections, Others, Rules};

/// `enum dialect`, from 1 on.
const DIALECTS: [Dialect; 4] = [Dialect::Every, Dialect::Spp, Dialect::First, Dialect::Standalone];

/// `enum backend_kind`.
const PLAIN_ANSWERS: u8 = 1;
/// `enum backend_kind`.
const ANSWERS_BY_SLOT: u8 = 2;

impl Tables {
    /// The TCP ports whose new connections are checked.
    pub(crate) fn judged_ports(&self) -> Result<Vec<u16>, AttachError> {
        let ports = self.ports()?.into_iter().filter(|(_, port)| matches!(port.state, ATTACHED | PAUSED));
        Ok(ports.map(|(number, _)| number).collect())
    }

    /// A port that is no longer wanted drains: its flows may still need the programs.
    pub(super) fn apply_ports(
        &mut self,
        wanted: &[PortRange],
        group: u8,
        others: Others,
    ) -> Result<(), AttachError> {
        let known = self.ports()?;
        let is_wanted = |number: &u16| wanted.iter().any(|range| range.contains(number));
        for (number, port) in known.iter().filter(|(number, _)| !is_wanted(number)) {
            let port = match (others, port.state) {
                (Others::Stay { .. }, PAUSED) => Port { state: ATTACHED, ..*port },
                (Others::Stay { .. }, _) => continue,
                _ => Port { state: DRAINING, ..*port },
            };
            self.set_port(*number, port)?;
        }
        let slots: BTreeMap<u16, u16> = known.iter().map(|(number, port)| (*number, port.counters)).collect();
        // Known ones first: what idles may be forgotten for the slots of the others.
        let (known, others): (Vec<_>, Vec<_>) =
            wanted.iter().map(|range| (range, slot_of(&slots, range))).partition(|(_, slot)| slot.is_some());
        for (range, slot) in known.into_iter().chain(others) {
            let slot = slot.map_or_else(|| self.free_slot(), Ok)?;
            for number in range.clone() {
                self.set_port(number, Port { counters: slot, state: ATTACHED, group })?;
            }
        }
        Ok(())
    }

    /// Takes these ports out.
    pub(crate) fn leave(&mut self, tcp: &BTreeSet<u16>, udp: &BTreeSet<u16>) -> Result<(), AttachError> {
        for (number, port) in self.ports()?.into_iter().filter(|(number, _)| tcp.contains(number)) {
            self.set_port(number, Port { state: DRAINING, ..port })?;
        }
        let udp_ports = self.udp_ports()?;
        udp_ports
            .keys()
            .filter(|number| udp.contains(number))
            .try_for_each(|number| self.remove_udp_port(*number))?;
        self.apply_udp_ports(&BTreeMap::new(), &[], 0, Others::Stay { may_be_taken: true })?;
        self.forget_unused_groups()
    }

    /// Whether these rules find room beside the ports that stay, and those that drain.
    pub(crate) fn check_room(&self, rules: &Rules) -> Result<(), AttachError> {
        let idle = self.idle_ports(true)?;
        let (ports, udp_ports) = (self.ports()?, self.udp_ports()?);
        let busy: BTreeMap<u16, Port> =
            ports.into_iter().filter(|(number, _)| !idle.contains(number)).collect();
        let (tcp, udp) = (rules.all_tcp_ranges(), rules.all_udp_ranges());
        let is_among = |ranges: &[PortRange], number: &u16| ranges.iter().any(|range| range.contains(number));
        let stay = busy.iter().filter(|(number, _)| !is_among(&tcp, number)).map(|(_, port)| *port);
        let stay: Vec<Port> = stay
            .chain(
                udp_ports
                    .iter()
                    .filter(|(number, _)| !is_among(&udp, number))
                    .map(|(_, udp_port)| udp_port.port),
            )
            .collect();
        let ports = stay.len() + rules.tcp_ports.len() + rules.udp_ports.len();
        if ports > usize::from(MAX_PORTS) {
            return Err(AttachError::TooLongRanges(ports));
        }
        let slots: BTreeSet<u16> = stay.iter().map(|port| port.counters).collect();
        let wanted = slots.len() + tcp.len() + udp.len();
        if wanted > usize::from(MAX_SLOTS) {
            return Err(AttachError::TooManyPorts(wanted));
        }
        let groups = busy
            .values()
            .map(|port| port.group)
            .chain(udp_ports.values().map(|udp_port| udp_port.port.group));
        if groups.collect::<BTreeSet<u8>>().len() >= usize::from(MAX_GROUPS) {
            return Err(AttachError::TooManyAttachments);
        }
        Ok(())
    }

    /// Removes those from the tables.
    pub(super) fn forget_idle_ports(&mut self, needs_room: bool) -> Result<(), AttachError> {
        for number in self.idle_ports(needs_room)? {
            let number = number.to_be_bytes();
            self.ports.remove(&number).map_err(AttachError::map("removing from", "tp_ports"))?;
        }
        Ok(())
    }

    /// Those that drain and have nothing left. What a translated connection leaves behind (TIME_WAIT) is let
    /// go only if room is needed.
    fn idle_ports(&self, needs_room: bool) -> Result<BTreeSet<u16>, AttachError> {
        let drained = self.ports()?.into_iter().filter(|(_, port)| matches!(port.state, DRAINING | REFUSING));
        let drained: Vec<u16> = drained.map(|(number, _)| number).collect();
        if drained.is_empty() {
            return Ok(BTreeSet::new());
        }
        // Handshakes first: one may become a flow meanwhile, and no new one begins.
        let handshakes = self.pending.keys().flatten().collect::<Vec<_>>();
        let flows = self.flows.keys().flatten();
        let ended = self.ended.keys().flatten().filter(|_| !needs_room);
        let busy: BTreeSet<u16> = handshakes
            .into_iter()
            .chain(flows)
            .chain(ended)
            .map(|key| u16::from_be_bytes(key.local_port))
            .collect();
        Ok(drained.into_iter().filter(|number| !busy.contains(number)).collect())
    }

    /// One that no port belongs to.
    pub(super) fn free_group(&mut self) -> Result<u8, AttachError> {
        let free = |used: BTreeSet<u8>| (0..MAX_GROUPS).find(|group| !used.contains(group));
        if let Some(group) = free(self.used_groups()?) {
            return Ok(group);
        }
        self.forget_idle_ports(true)?;
        free(self.used_groups()?).ok_or(AttachError::TooManyAttachments)
    }

    fn used_groups(&self) -> Result<BTreeSet<u8>, AttachError> {
        let udp_ports = self.udp_ports()?.into_values().map(|udp_port| udp_port.port.group);
        Ok(self.ports()?.into_values().map(|port| port.group).chain(udp_ports).collect())
    }

    pub(super) fn forget_unused_groups(&mut self) -> Result<(), AttachError> {
        let used = self.used_groups()?;
        for group in (0..MAX_GROUPS).filter(|group| !used.contains(group)) {
            proofs::write(&mut self.proofs, group, &[])?;
            self.set_lists(group, [&[], &[], &[]])?;
        }
        self.renew_edition()
    }

    /// UDP has nothing to drain: datagrams for a removed port pass unchanged.
    pub(super) fn apply_udp_ports(
        &mut self,
        wanted: &BTreeMap<u16, rules::UdpPort>,
        ranges: &[PortRange],
        group: u8,
        others: Others,
    ) -> Result<(), AttachError> {
        let known = self.udp_ports()?;
        let is_staying = matches!(others, Others::Stay { .. });
        let left = known.keys().filter(|number| !wanted.contains_key(number) && !is_staying);
        left.copied().collect::<Vec<_>>().into_iter().try_for_each(|number| self.remove_udp_port(number))?;
        let mut all: BTreeMap<u16, (rules::UdpPort, Port)> = self
            .udp_ports()?
            .into_iter()
            .map(|(number, udp_port)| (number, (udp_port.rule(), udp_port.port)))
            .collect();
        let slots: BTreeMap<u16, u16> =
            known.iter().map(|(number, udp_port)| (*number, udp_port.port.counters)).collect();
        for range in ranges {
            let slot = slot_of(&slots, range).map_or_else(|| self.free_slot(), Ok)?;
            let port = Port { counters: slot, state: ATTACHED, group };
            let udp_ports: Vec<_> = wanted.range(range.clone()).collect();
            all.extend(udp_ports.iter().map(|(number, udp_port)| (**number, (**udp_port, port))));
            self.apply_backends(&all)?;
            for (number, udp_port) in udp_ports {
                let write = self.udp_ports.insert(number.to_be_bytes(), RawUdpPort::of(udp_port, port), 0);
                write.map_err(AttachError::map("writing", "tp_udp_ports"))?;
            }
        }
        self.apply_backends(&all)
    }

    fn remove_udp_port(&mut self, number: u16) -> Result<(), AttachError> {
        self.udp_ports
            .remove(&number.to_be_bytes())
            .map_err(AttachError::map("removing from", "tp_udp_ports"))
    }

    fn apply_backends(
        &mut self,
        udp_ports: &BTreeMap<u16, (rules::UdpPort, Port)>,
    ) -> Result<(), AttachError> {
        let backends = backends_of(udp_ports);
        let old: Vec<[u8; 2]> = self.backends.keys().flatten().collect();
        for number in old.iter().filter(|number| !backends.contains_key(&u16::from_be_bytes(**number))) {
            self.backends.remove(number).map_err(AttachError::map("removing from", "tp_backends"))?;
        }
        backends.into_iter().try_for_each(|(number, backend)| self.set_backend(number, backend))
    }

    fn set_backend(&mut self, number: u16, backend: Backend) -> Result<(), AttachError> {
        self.backends
            .insert(number.to_be_bytes(), backend, 0)
            .map_err(AttachError::map("writing", "tp_backends"))
    }

    fn used_slots(&self) -> Result<BTreeSet<u16>, AttachError> {
        let udp_ports = self.udp_ports()?.into_values().map(|udp_port| udp_port.port.counters);
        Ok(self.ports()?.into_values().map(|port| port.counters).chain(udp_ports).collect())
    }

    /// Returns a counter slot that no port uses. The next user of a removed UDP port's slot resets it.
    fn free_slot(&mut self) -> Result<u16, AttachError> {
        let free = |used: &BTreeSet<u16>| (0..MAX_SLOTS).find(|slot| !used.contains(slot));
        let mut used = self.used_slots()?;
        if free(&used).is_none() {
            self.forget_idle_ports(true)?;
            used = self.used_slots()?;
        }
        let slot = free(&used).ok_or(AttachError::TooManyPorts(used.len() + 1))?;
        self.clear_counters(slot)?;
        Ok(slot)
    }

    fn clear_counters(&mut self, slot: u16) -> Result<(), AttachError> {
        let cpus = nr_cpus().map_err(|(_, error)| AttachError::file("reading", "the processors")(error))?;
        let first = u32::from(slot) * COUNTERS_LEN;
        for index in (first..).take(COUNTERS.len()) {
            let zeros = PerCpuValues::try_from(vec![0; cpus])
                .map_err(AttachError::file("counting", "the processors"))?;
            self.counters.set(index, zeros, 0).map_err(AttachError::map("writing", "tp_counters"))?;
        }
        Ok(())
    }

    /// Stops tracking new connections: they pass unchecked, or are refused.
    pub(crate) fn drain(&mut self, new: NewConnections) -> Result<(), AttachError> {
        let state = match new {
            NewConnections::Pass => DRAINING,
            NewConnections::Refuse => REFUSING,
        };
        for (number, port) in self.ports()? {
            self.set_port(number, Port { state, ..port })?;
        }
        self.apply_udp_ports(&BTreeMap::new(), &[], 0, Others::Leave)
    }

    /// Lets no new connection begin: SYNs are dropped, and their senders repeat them.
    pub(crate) fn pause(&mut self) -> Result<(), AttachError> {
        self.exchange_state(ATTACHED, PAUSED)
    }

    /// Ends the pause. [`Tables::apply`] does so, too.
    pub(crate) fn resume(&mut self) -> Result<(), AttachError> {
        self.exchange_state(PAUSED, ATTACHED)
    }

    fn exchange_state(&mut self, from: u8, state: u8) -> Result<(), AttachError> {
        let ports = self.ports()?.into_iter().filter(|(_, port)| port.state == from);
        ports
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|(number, port)| self.set_port(number, Port { state, ..port }))
    }

    fn set_port(&mut self, number: u16, port: Port) -> Result<(), AttachError> {
        self.ports.insert(number.to_be_bytes(), port, 0).map_err(AttachError::map("writing", "tp_ports"))
    }

    /// The ports with their state.
    pub(crate) fn ports(&self) -> Result<BTreeMap<u16, Port>, AttachError> {
        let found: Result<BTreeMap<_, _>, MapError> = self
            .ports
            .iter()
            .map(|entry| entry.map(|(number, port)| (u16::from_be_bytes(number), port)))
            .collect();
        found.map_err(AttachError::map("reading", "tp_ports"))
    }

    /// The UDP ports with their state.
    pub(crate) fn udp_ports(&self) -> Result<BTreeMap<u16, RawUdpPort>, AttachError> {
        let found: Result<BTreeMap<_, _>, MapError> = self
            .udp_ports
            .iter()
            .map(|entry| entry.map(|(number, udp_port)| (u16::from_be_bytes(number), udp_port)))
            .collect();
        found.map_err(AttachError::map("reading", "tp_udp_ports"))
    }
}

/// `enum dialect`.
pub(crate) fn number_of(dialect: Dialect) -> u8 {
    (1..).zip(DIALECTS).find(|(_, known)| *known == dialect).map_or(0, |(number, _)| number)
}

/// The backends of all UDP ports, with how the programs treat their answers: `enum backend_kind`.
fn backends_of(udp_ports: &BTreeMap<u16, (rules::UdpPort, Port)>) -> BTreeMap<u16, Backend> {
    let mut backends = BTreeMap::new();
    for (number, (udp_port, port)) in udp_ports {
        let is_seated = udp_port.dialect == Dialect::Spp || udp_port.backend_port != *number;
        let kind = if is_seated { ANSWERS_BY_SLOT } else { PLAIN_ANSWERS };
        let backend = backends.entry(udp_port.backend_port).or_insert(Backend {
            counters: port.counters,
            kind,
            group: port.group,
        });
        *backend = Backend { counters: port.counters, kind: backend.kind.max(kind), group: port.group };
    }
    backends
}

impl RawUdpPort {
    fn of(udp_port: &rules::UdpPort, port: Port) -> Self {
        let dialect = number_of(udp_port.dialect);
        Self { port, backend_port: udp_port.backend_port.to_be_bytes(), dialect, unused: 0 }
    }

    /// As it was wanted.
    pub(crate) fn rule(&self) -> rules::UdpPort {
        let dialect =
            DIALECTS.into_iter().find(|dialect| number_of(*dialect) == self.dialect).unwrap_or_default();
        rules::UdpPort { backend_port: u16::from_be_bytes(self.backend_port), dialect }
    }
}

/// The slot of a range that is attached already, unless ports outside of it have the same.
fn slot_of(slots: &BTreeMap<u16, u16>, range: &PortRange) -> Option<u16> {
    let (_, slot) = slots.range(range.clone()).next()?;
    slots.iter().all(|(number, other)| other != slot || range.contains(number)).then_some(*slot)
}
