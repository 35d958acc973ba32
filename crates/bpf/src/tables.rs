//! Typed access to the pinned tables.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;

use crate::counters::COUNTERS;
use crate::error::AttachError;
use crate::layout::{
    Address, Backend, FlowKey, MAX_PORTS, Port, RawEmbryo, RawFlow, RawGate, Settings, UdpFlow, UdpKey,
};
use crate::place::Place;
use crate::rules;
use crate::rules::NewConnections;
use crate::rules::{Rules, UdpDialect};
use crate::trie::{self, Entry};

/// Counters of each port.
const COUNTERS_LEN: u32 = {
    assert!(COUNTERS.len() < 256);
    COUNTERS.len().to_le_bytes()[0] as u32
};

/// `enum dialect`.
pub(crate) const DIALECT_EVERY: u8 = 1;
/// `enum dialect`.
pub(crate) const DIALECT_SPP: u8 = 2;

/// `enum backend_kind`.
const PLAIN_ANSWERS: u8 = 1;
/// `enum backend_kind`.
const SEATED_ANSWERS: u8 = 2;

/// `enum state`.
const ATTACHED: u8 = 0;
/// `enum state`.
const DRAINING: u8 = 1;
/// `enum state`.
pub(crate) const REFUSING: u8 = 2;
/// `enum state`.
const PAUSED: u8 = 3;

/// The tables of one network namespace.
pub(crate) struct Tables {
    ports: HashMap<MapData, [u8; 2], Port>,
    gates: HashMap<MapData, [u8; 2], RawGate>,
    backends: HashMap<MapData, [u8; 2], Backend>,
    settings: Array<MapData, Settings>,
    senders: LpmTrie<MapData, Address, u32>,
    claims: LpmTrie<MapData, Address, u32>,
    denied: LpmTrie<MapData, Address, u32>,
    flows: HashMap<MapData, FlowKey, RawFlow>,
    embryos: HashMap<MapData, FlowKey, RawEmbryo>,
    udp_flows: HashMap<MapData, UdpKey, UdpFlow>,
    counters: PerCpuArray<MapData, u64>,
}

fn pinned(place: &Place, name: &'static str) -> Result<MapData, AttachError> {
    MapData::from_pin(place.maps().join(name)).map_err(AttachError::map("opening", name))
}

macro_rules! open {
    ($place:expr, $kind:ident, $name:literal) => {
        Map::$kind(pinned($place, $name)?).try_into().map_err(AttachError::map("opening", $name))?
    };
}

/// Opens all of them.
const NAMES: [&str; 11] = [
    "tp_ports",
    "tp_gates",
    "tp_backends",
    "tp_settings",
    "tp_senders",
    "tp_claims",
    "tp_denied",
    "tp_flows",
    "tp_embryos",
    "tp_udp_flows",
    "tp_counters",
];

impl Tables {
    /// Whether all tables exist. One that can't be inspected counts as existing: opening it reports the error.
    pub(crate) fn are_all_there(place: &Place) -> bool {
        NAMES.iter().all(|name| place.maps().join(name).try_exists().unwrap_or(true))
    }

    /// Opens the tables that [`crate::attach()`] has pinned.
    pub(crate) fn open(place: &Place) -> Result<Self, AttachError> {
        Ok(Self {
            ports: open!(place, HashMap, "tp_ports"),
            gates: open!(place, HashMap, "tp_gates"),
            backends: open!(place, HashMap, "tp_backends"),
            settings: open!(place, Array, "tp_settings"),
            senders: open!(place, LpmTrie, "tp_senders"),
            claims: open!(place, LpmTrie, "tp_claims"),
            denied: open!(place, LpmTrie, "tp_denied"),
            flows: open!(place, HashMap, "tp_flows"),
            embryos: open!(place, LruHashMap, "tp_embryos"),
            udp_flows: open!(place, LruHashMap, "tp_udp_flows"),
            counters: open!(place, PerCpuArray, "tp_counters"),
        })
    }

    /// Writes the rules, those for ports last: without a port the programs do nothing. The edition changes only
    /// after the rest: claims judged by an older edition are judged again.
    pub(crate) fn apply(&mut self, rules: &Rules, begins_again: bool) -> Result<(), AttachError> {
        let before = self.settings.get(&0, 0).map_err(AttachError::map("reading", "tp_settings"))?;
        let mut settings = Settings {
            header_timeout_ns: u64::try_from(rules.header_timeout.as_nanos()).unwrap_or(u64::MAX),
            header_max: rules.header_max as u64,
            udp_silence_s: u32::try_from(rules.udp_silence.as_secs().max(1)).unwrap_or(u32::MAX),
            begins_again: begins_again.into(),
            header_wait_ns: u64::try_from(rules.header_wait.as_nanos()).unwrap_or(u64::MAX),
            judged: if before.judged == 0 { random_mark() } else { before.judged },
            ..before
        };
        self.settings.set(0, settings, 0).map_err(AttachError::map("writing", "tp_settings"))?;
        replace(&mut self.claims, "tp_claims", &trie::claims(&rules.claims, &rules.own_addresses))?;
        replace(&mut self.denied, "tp_denied", &trie::denied(&rules.claims))?;
        replace(
            &mut self.senders,
            "tp_senders",
            &trie::senders(&rules.senders, rules.header, &rules.exceptions),
        )?;
        settings.edition = before.edition.checked_add(1).unwrap_or(1);
        self.settings.set(0, settings, 0).map_err(AttachError::map("writing", "tp_settings"))?;
        self.apply_ports(&rules.tcp_ports)?;
        self.apply_gates(&rules.udp_ports)
    }

    /// The ports that are judged now and not wanted by these rules.
    pub(crate) fn left_by(&self, rules: &Rules) -> Result<Vec<String>, AttachError> {
        let tcp = self.ports()?.into_iter().filter(|(number, port)| {
            matches!(port.state, ATTACHED | PAUSED) && !rules.tcp_ports.contains(number)
        });
        let udp = self.gates()?.into_keys().filter(|number| !rules.udp_ports.contains_key(number));
        let udp = udp.map(|number| format!("{number}/udp"));
        Ok(tcp.map(|(number, _)| number.to_string()).chain(udp).collect())
    }

    /// A port that is no longer wanted drains: its flows may still need the programs.
    fn apply_ports(&mut self, wanted: &BTreeSet<u16>) -> Result<(), AttachError> {
        let known = self.ports()?;
        for (number, port) in &known {
            let state = if wanted.contains(number) { ATTACHED } else { DRAINING };
            self.set_port(*number, Port { state, ..*port })?;
        }
        for number in wanted.iter().filter(|number| !known.contains_key(number)) {
            let slot = self.free_slot()?;
            self.set_port(*number, Port { slot, state: ATTACHED, unused: 0 })?;
        }
        Ok(())
    }

    /// UDP has nothing to drain: datagrams for a removed port pass unchanged.
    fn apply_gates(&mut self, wanted: &BTreeMap<u16, rules::Gate>) -> Result<(), AttachError> {
        let known = self.gates()?;
        for number in known.keys().filter(|number| !wanted.contains_key(number)) {
            self.gates
                .remove(&number.to_be_bytes())
                .map_err(AttachError::map("removing from", "tp_gates"))?;
        }
        let backends = kinds_of_backends(wanted);
        let old: Vec<[u8; 2]> = self.backends.keys().flatten().collect();
        for number in old.iter().filter(|number| !backends.contains_key(&u16::from_be_bytes(**number))) {
            self.backends.remove(number).map_err(AttachError::map("removing from", "tp_backends"))?;
        }
        for (number, gate) in wanted {
            let slot = match known.get(number) {
                Some(old) => old.port.slot,
                None => self.free_slot()?,
            };
            self.set_backend(
                gate.backend_port,
                Backend { slot, kind: backends[&gate.backend_port], unused: 0 },
            )?;
            let gate = RawGate {
                port: Port { slot, state: ATTACHED, unused: 0 },
                backend_port: gate.backend_port.to_be_bytes(),
                dialect: match gate.dialect {
                    UdpDialect::Every => DIALECT_EVERY,
                    UdpDialect::Spp => DIALECT_SPP,
                },
                unused: 0,
            };
            let write = self.gates.insert(number.to_be_bytes(), gate, 0);
            write.map_err(AttachError::map("writing", "tp_gates"))?;
        }
        Ok(())
    }

    fn set_backend(&mut self, number: u16, backend: Backend) -> Result<(), AttachError> {
        self.backends
            .insert(number.to_be_bytes(), backend, 0)
            .map_err(AttachError::map("writing", "tp_backends"))
    }

    /// Returns a counter slot that no port uses. The next user of a removed UDP port's slot resets it.
    fn free_slot(&mut self) -> Result<u16, AttachError> {
        let ports = self.ports()?;
        let gates = self.gates()?;
        let slots = ports.values().map(|port| port.slot).chain(gates.values().map(|gate| gate.port.slot));
        let used: BTreeSet<u16> = slots.collect();
        let free = (0..MAX_PORTS).find(|slot| !used.contains(slot));
        let slot = free.ok_or(AttachError::TooManyPorts(used.len() + 1))?;
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
        self.apply_gates(&BTreeMap::new())
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
    pub(crate) fn gates(&self) -> Result<BTreeMap<u16, RawGate>, AttachError> {
        let found: Result<BTreeMap<_, _>, MapError> = self
            .gates
            .iter()
            .map(|entry| entry.map(|(number, gate)| (u16::from_be_bytes(number), gate)))
            .collect();
        found.map_err(AttachError::map("reading", "tp_gates"))
    }

    /// See [`Rules::udp_silence`].
    pub(crate) fn udp_silence(&self) -> Result<Duration, AttachError> {
        let settings = self.settings.get(&0, 0).map_err(AttachError::map("reading", "tp_settings"))?;
        Ok(Duration::from_secs(settings.udp_silence_s.into()))
    }

    /// Whether handshakes that the kernel gives up go on.
    pub(crate) fn begins_again(&self) -> Result<bool, AttachError> {
        let settings = self.settings.get(&0, 0).map_err(AttachError::map("reading", "tp_settings"))?;
        Ok(settings.begins_again != 0)
    }

    /// The UDP flows, likewise.
    pub(crate) fn udp_flows(&self) -> Vec<(UdpKey, UdpFlow)> {
        self.udp_flows.iter().flatten().collect()
    }

    /// Removes all UDP flows.
    pub(crate) fn forget_udp_flows(&mut self) -> Result<(), AttachError> {
        let keys: Vec<UdpKey> = self.udp_flows.keys().flatten().collect();
        keys.iter()
            .try_for_each(|key| self.udp_flows.remove(key))
            .map_err(AttachError::map("removing from", "tp_udp_flows"))
    }

    /// The current flows. One that ends during the call may be missing, or returned twice.
    pub(crate) fn flows(&self) -> Vec<(FlowKey, RawFlow)> {
        self.flows.iter().flatten().collect()
    }

    /// The connections without a complete header.
    pub(crate) fn embryos(&self) -> Vec<(FlowKey, RawEmbryo)> {
        self.embryos.iter().flatten().collect()
    }

    /// The counters of a port, or of packets without one, in the order of [`COUNTERS`].
    pub(crate) fn counters(&self, slot: u16) -> Result<Vec<u64>, AttachError> {
        let first = u32::from(slot) * COUNTERS_LEN;
        (first..).take(COUNTERS.len()).map(|index| self.counter(index)).collect()
    }

    fn counter(&self, index: u32) -> Result<u64, AttachError> {
        let values = self.counters.get(&index, 0).map_err(AttachError::map("reading", "tp_counters"))?;
        Ok(values.iter().sum())
    }
}

/// How the programs treat each backend's answers: `enum backend_kind`.
fn kinds_of_backends(wanted: &BTreeMap<u16, rules::Gate>) -> BTreeMap<u16, u8> {
    let mut backends = BTreeMap::new();
    for (number, gate) in wanted {
        let is_seated = gate.dialect == UdpDialect::Spp || gate.backend_port != *number;
        let kind = backends.entry(gate.backend_port).or_insert(PLAIN_ANSWERS);
        *kind = (*kind).max(if is_seated { SEATED_ANSWERS } else { PLAIN_ANSWERS });
    }
    backends
}

/// A secret number for `skb->priority` (`c/udp_backstop.h`). Its lowest four bits are 0, as in packets without a
/// priority, because queueing disciplines use them. Never 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 36).unwrap_or_default().max(1) << 4
}

/// Adds before it removes, so that entries that stay are never missing.
fn replace(
    table: &mut LpmTrie<MapData, Address, u32>,
    name: &'static str,
    entries: &[Entry],
) -> Result<(), AttachError> {
    let key = |entry: &Entry| Key::new(entry.0.prefix_len().into(), Address(entry.0.network().octets()));
    for entry in entries {
        table.insert(&key(entry), entry.1, 0).map_err(AttachError::map("writing", name))?;
    }
    let found: Result<Vec<_>, MapError> = table.keys().collect();
    let wanted: BTreeSet<(u32, [u8; 16])> =
        entries.iter().map(|entry| (entry.0.prefix_len().into(), entry.0.network().octets())).collect();
    for old in found.map_err(AttachError::map("reading", name))? {
        if !wanted.contains(&(old.prefix_len(), old.data().0)) {
            table.remove(&old).map_err(AttachError::map("removing from", name))?;
        }
    }
    Ok(())
}
