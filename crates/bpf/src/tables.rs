//! Typed access to the pinned tables.

pub(crate) mod ports;
pub(crate) mod proofs;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use ipnet::Ipv6Net;
use truepeer_policy::HeaderRule;

use crate::counters::COUNTERS;
use crate::error::{AttachError, was_there};
use crate::groups::{self, List};
use crate::layout::{
    Address, Backend, FlowKey, Port, RawFlow, RawPending, RawUdpPort, Settings, Terms, UdpFlow, UdpKey,
};
use crate::place::Place;
use crate::ports::port_list;
use crate::programs::fingerprint;
use crate::rules::{Others, Rules, RulesInForce};
use crate::trie::{self, Entry};

/// Counters of each port.
const COUNTERS_LEN: u32 = {
    assert!(COUNTERS.len() < 256);
    COUNTERS.len().to_le_bytes()[0] as u32
};

/// `enum stage`.
const ESTABLISHED: u8 = 1;

/// `enum state`.
pub(crate) const ATTACHED: u8 = 0;
/// `enum state`.
const DRAINING: u8 = 1;
/// `enum state`.
pub(crate) const REFUSING: u8 = 2;
/// `enum state`.
pub(crate) const PAUSED: u8 = 3;

/// The tables of one network namespace.
pub(crate) struct Tables {
    ports: HashMap<MapData, [u8; 2], Port>,
    udp_ports: HashMap<MapData, [u8; 2], RawUdpPort>,
    backends: HashMap<MapData, [u8; 2], Backend>,
    settings: Array<MapData, Settings>,
    terms: Array<MapData, Terms>,
    senders: LpmTrie<MapData, Address, u32>,
    claims: LpmTrie<MapData, Address, u32>,
    denied: LpmTrie<MapData, Address, u32>,
    proofs: proofs::Proofs,
    flows: HashMap<MapData, FlowKey, RawFlow>,
    pending: HashMap<MapData, FlowKey, RawPending>,
    ended: HashMap<MapData, FlowKey, RawFlow>,
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
const NAMES: [&str; 17] = [
    "tp_ports",
    "tp_udp_ports",
    "tp_backends",
    "tp_settings",
    "tp_terms",
    "tp_senders",
    "tp_claims",
    "tp_denied",
    "tp_proofs",
    "tp_flows",
    "tp_pending",
    "tp_ended",
    "tp_udp_flows",
    "tp_counters",
    "tp_banned",
    "tp_ban_blocks",
    "tp_bans",
];

impl Tables {
    /// Whether all tables exist. One that can't be inspected counts as existing: opening it reports the
    /// error.
    pub(crate) fn are_all_there(place: &Place) -> bool {
        NAMES.iter().all(|name| place.maps().join(name).try_exists().unwrap_or(true))
    }

    /// Opens the tables that [`crate::attach()`] has pinned.
    pub(crate) fn open(place: &Place) -> Result<Self, AttachError> {
        Ok(Self {
            ports: open!(place, HashMap, "tp_ports"),
            udp_ports: open!(place, HashMap, "tp_udp_ports"),
            backends: open!(place, HashMap, "tp_backends"),
            settings: open!(place, Array, "tp_settings"),
            terms: open!(place, Array, "tp_terms"),
            senders: open!(place, LpmTrie, "tp_senders"),
            claims: open!(place, LpmTrie, "tp_claims"),
            denied: open!(place, LpmTrie, "tp_denied"),
            proofs: open!(place, LpmTrie, "tp_proofs"),
            flows: open!(place, HashMap, "tp_flows"),
            pending: open!(place, LruHashMap, "tp_pending"),
            ended: open!(place, LruHashMap, "tp_ended"),
            udp_flows: open!(place, LruHashMap, "tp_udp_flows"),
            counters: open!(place, PerCpuArray, "tp_counters"),
        })
    }

    /// Writes the rules of an attachment, those for ports last: without a port the programs do nothing. It
    /// gets a group of its own, so each port changes at once from the old rules to these.
    pub(crate) fn apply(
        &mut self,
        rules: &Rules,
        begins_again: bool,
        others: Others,
    ) -> Result<(), AttachError> {
        self.forget_idle_ports(false)?;
        let group = self.free_group()?;
        let before = self.settings()?;
        self.set_settings(Settings {
            begins_again: begins_again.into(),
            validated: if before.validated == 0 { random_mark() } else { before.validated },
            netns: netns_inode(),
            programs: fingerprint(),
            ..before
        })?;
        let terms = Terms {
            header_timeout_ns: u64::try_from(rules.header_timeout.as_nanos()).unwrap_or(u64::MAX),
            header_wait_ns: u64::try_from(rules.header_wait.as_nanos()).unwrap_or(u64::MAX),
            header_max: u32::try_from(rules.header_max).unwrap_or(u32::MAX),
            udp_silence_s: u32::try_from(rules.udp_silence.as_secs().max(1)).unwrap_or(u32::MAX),
            refuse_unshowable: rules.refuse_unshowable.into(),
            shows_destination: rules.shows_destination.into(),
        };
        self.terms.set(group.into(), terms, 0).map_err(AttachError::map("writing", "tp_terms"))?;
        let claims = trie::claims(&rules.claims, &rules.own_addresses);
        let senders = trie::senders(&rules.senders, rules.header, &rules.exceptions);
        proofs::write(&mut self.proofs, group, &rules.required_tlvs)?;
        self.set_lists(group, [&claims, &trie::denied(&rules.claims), &senders])?;
        self.apply_ports(&rules.all_tcp_ranges(), group, others)?;
        self.apply_udp_ports(&rules.udp_ports, &rules.all_udp_ranges(), group, others)?;
        self.forget_unused_groups()
    }

    fn settings(&self) -> Result<Settings, AttachError> {
        self.settings.get(&0, 0).map_err(AttachError::map("reading", "tp_settings"))
    }

    fn set_settings(&mut self, settings: Settings) -> Result<(), AttachError> {
        self.settings.set(0, settings, 0).map_err(AttachError::map("writing", "tp_settings"))
    }

    /// The lists of one attachment: claims, denied clients, senders. The edition changes after that: claims
    /// validated by an older edition are validated again.
    fn set_lists(&mut self, group: u8, [claims, denied, senders]: [&[Entry]; 3]) -> Result<(), AttachError> {
        write(&mut self.claims, "tp_claims", group, claims)?;
        write(&mut self.denied, "tp_denied", group, denied)?;
        write(&mut self.senders, "tp_senders", group, senders)?;
        self.renew_edition()
    }

    fn renew_edition(&mut self) -> Result<(), AttachError> {
        self.set_bans(self.bans()?)
    }

    /// `enum bans`.
    pub(crate) fn bans(&self) -> Result<u32, AttachError> {
        Ok(self.settings()?.bans)
    }

    /// Claims and bans are looked up once more.
    pub(crate) fn set_bans(&mut self, bans: u32) -> Result<(), AttachError> {
        let before = self.settings()?;
        self.set_settings(Settings { bans, edition: before.edition.checked_add(1).unwrap_or(1), ..before })
    }

    /// The ports that these rules would leave without programs: those that are attached now and not among
    /// them.
    pub(crate) fn left_by(&self, rules: &Rules) -> Result<Vec<String>, AttachError> {
        let tcp = self.judged_ports()?.into_iter().filter(|number| !rules.tcp_ports.contains(number));
        let udp = self.udp_ports()?.into_keys().filter(|number| !rules.udp_ports.contains_key(number));
        Ok(names_of(tcp, udp))
    }

    /// The ports of these rules that are attached already.
    pub(crate) fn taken_from(&self, rules: &Rules) -> Result<Vec<String>, AttachError> {
        let tcp = self.judged_ports()?.into_iter().filter(|number| rules.tcp_ports.contains(number));
        let udp = self.udp_ports()?.into_keys().filter(|number| rules.udp_ports.contains_key(number));
        Ok(names_of(tcp, udp))
    }

    /// A backend's port to which ports of another attachment lead that stay: its answers could belong to
    /// either.
    pub(crate) fn shared_backend(&self, rules: &Rules) -> Result<Option<u16>, AttachError> {
        let staying =
            self.udp_ports()?.into_iter().filter(|(number, _)| !rules.udp_ports.contains_key(number));
        let mut backends = staying.map(|(_, udp_port)| u16::from_be_bytes(udp_port.backend_port));
        Ok(backends.find(|port| rules.udp_ports.values().any(|udp_port| udp_port.backend_port == *port)))
    }

    /// See [`Rules::udp_silence`]; by group.
    pub(crate) fn udp_silence(&self, group: u8) -> Result<Duration, AttachError> {
        Ok(Duration::from_secs(self.terms(group)?.udp_silence_s.into()))
    }

    fn terms(&self, group: u8) -> Result<Terms, AttachError> {
        self.terms.get(&group.into(), 0).map_err(AttachError::map("reading", "tp_terms"))
    }

    /// The inode of the network namespace.
    pub(crate) fn netns(&self) -> Result<u64, AttachError> {
        Ok(self.settings()?.netns)
    }

    /// Whether the programs are those of this build.
    pub(crate) fn has_current_programs(&self) -> Result<bool, AttachError> {
        Ok(self.settings()?.programs == fingerprint())
    }

    /// The rules of these groups.
    pub(crate) fn rules_of(
        &self,
        groups: impl Iterator<Item = u8>,
    ) -> Result<BTreeMap<u8, RulesInForce>, AttachError> {
        let senders = list(&self.senders, "tp_senders")?;
        let claims = list(&self.claims, "tp_claims")?;
        let denied = list(&self.denied, "tp_denied")?;
        let rules = groups.map(|group| {
            let terms = self.terms(group)?;
            let (claims_allowed, claims_refused) = trie::exceptional_claims(&groups::of(&claims, group));
            let rules = RulesInForce {
                senders: groups::of(&senders, group)
                    .into_iter()
                    .map(|(net, value)| (trie::to_net(net), trie::rule_of(value)))
                    .collect(),
                required_tlvs: proofs::kinds(&self.proofs, group)?,
                claims_allowed,
                claims_refused,
                denied: groups::of(&denied, group).into_iter().map(|(net, _)| trie::to_net(net)).collect(),
                header_timeout: Duration::from_nanos(terms.header_timeout_ns),
                header_wait: Duration::from_nanos(terms.header_wait_ns),
                header_max: terms.header_max,
                refuse_unshowable: terms.refuse_unshowable != 0,
                shows_destination: terms.shows_destination != 0,
                udp_silence: Duration::from_secs(terms.udp_silence_s.into()),
            };
            Ok((group, rules))
        });
        rules.collect()
    }

    /// Whether handshakes that the kernel gives up go on.
    pub(crate) fn begins_again(&self) -> Result<bool, AttachError> {
        Ok(self.settings()?.begins_again != 0)
    }

    /// The UDP flows. One that is forgotten during the call may be missing, or returned twice.
    pub(crate) fn udp_flows(&self) -> Vec<(UdpKey, UdpFlow)> {
        self.udp_flows.iter().flatten().collect()
    }

    /// Removes all UDP flows.
    #[cfg(test_programs)]
    pub(crate) fn forget_udp_flows(&mut self) -> Result<(), AttachError> {
        let keys: Vec<UdpKey> = self.udp_flows.keys().flatten().collect();
        self.forget_these_udp_flows(&keys)
    }

    /// Removes these. The programs may have forgotten some since they were listed (LRU).
    pub(crate) fn forget_these_udp_flows(&mut self, keys: &[UdpKey]) -> Result<(), AttachError> {
        keys.iter()
            .try_for_each(|key| was_there(self.udp_flows.remove(key)).map(drop))
            .map_err(AttachError::map("removing from", "tp_udp_flows"))
    }

    /// Whether this sender must send a header to this TCP port.
    pub(crate) fn requires_header(&self, sender: Address, port: [u8; 2]) -> Result<bool, AttachError> {
        let found = match (self.ports.get(&port, 0), self.senders.get(&Key::new(128, sender), 0)) {
            (Ok(port), Ok(rules)) => Some((port, rules)),
            (Err(MapError::KeyNotFound), _) | (_, Err(MapError::KeyNotFound)) => None,
            (Err(error), _) => return Err(AttachError::map("reading", "tp_ports")(error)),
            (_, Err(error)) => return Err(AttachError::map("reading", "tp_senders")(error)),
        };
        let rule = found.and_then(|(port, rules)| trie::rule_of(rules >> (u32::from(port.group) * 2) & 3));
        Ok(rule == Some(HeaderRule::Require))
    }

    /// The current flows. One that ends during the call may be missing, or returned twice.
    pub(crate) fn flows(&self) -> Vec<(FlowKey, RawFlow)> {
        self.flows.iter().flatten().collect()
    }

    /// The connections whose header is off, and that have no socket yet.
    pub(crate) fn established(&self) -> Vec<(FlowKey, RawFlow)> {
        let established = self.pending().into_iter().filter(|(_, pending)| pending.stage == ESTABLISHED);
        established.map(|(key, pending)| (key, pending.flow())).collect()
    }

    /// The connections without a complete header.
    pub(crate) fn pending(&self) -> Vec<(FlowKey, RawPending)> {
        self.pending.iter().flatten().collect()
    }

    /// The counters of a port, or of packets without one, in the order of [`COUNTERS`].
    pub(crate) fn counters(&self, slot: u16) -> Result<Vec<u64>, AttachError> {
        let first = u32::from(slot) * COUNTERS_LEN;
        (first..).take(COUNTERS.len()).map(|index| self.counter(index)).collect()
    }

    /// One of them, by its place in [`COUNTERS`].
    pub(crate) fn count_of(&self, slot: u16, counter: usize) -> Result<u64, AttachError> {
        self.counter(u32::from(slot) * COUNTERS_LEN + u32::try_from(counter).unwrap_or(u32::MAX))
    }

    fn counter(&self, index: u32) -> Result<u64, AttachError> {
        let values = self.counters.get(&index, 0).map_err(AttachError::map("reading", "tp_counters"))?;
        Ok(values.iter().sum())
    }
}

pub(crate) fn names_of(tcp: impl Iterator<Item = u16>, udp: impl Iterator<Item = u16>) -> Vec<String> {
    [port_list(tcp, ""), port_list(udp, "/udp")].concat()
}

/// Of the calling thread's network namespace; 0: unknown.
fn netns_inode() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |found| found.ino())
}

/// A secret number for `skb->priority` (`c/attach/udp_backstop.h`). Its lowest four bits are 0, as in packets
/// without a priority, because queueing disciplines use them. Never 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 36).unwrap_or_default().max(1) << 4
}

/// Writes the list of one group, which may be empty. The others see no change at any moment: an entry has the
/// values that hold around it. Adds before it removes, so that entries that stay are never missing.
pub(crate) fn write(
    table: &mut LpmTrie<MapData, Address, u32>,
    name: &'static str,
    group: u8,
    entries: &[Entry],
) -> Result<(), AttachError> {
    let found = list(table, name)?;
    let wanted = groups::with(&found, group, entries);
    for (prefix, value) in wanted.iter().filter(|(prefix, value)| found.get(prefix) != Some(value)) {
        table.insert(&key_of(prefix), value, 0).map_err(AttachError::map("writing", name))?;
    }
    for prefix in found.keys().filter(|prefix| !wanted.contains_key(prefix)) {
        table.remove(&key_of(prefix)).map_err(AttachError::map("removing from", name))?;
    }
    Ok(())
}

fn list(table: &LpmTrie<MapData, Address, u32>, name: &'static str) -> Result<List, AttachError> {
    let found: Result<List, MapError> = table.iter().map(|entry| entry.map(from_entry)).collect();
    found.map_err(AttachError::map("reading", name))
}

fn key_of(prefix: &Ipv6Net) -> Key<Address> {
    Key::new(prefix.prefix_len().into(), Address(prefix.network().octets()))
}

fn from_entry((key, value): (Key<Address>, u32)) -> Entry {
    let len = u8::try_from(key.prefix_len()).unwrap_or(128).min(128);
    (Ipv6Net::new_assert(key.data().0.into(), len), value)
}
