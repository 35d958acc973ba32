//! What is attached, and its counters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::cgroup::Living;
use crate::counters::{COUNTERS, Of, PortCounter};
use crate::error::AttachError;
use crate::layout::{FlowKey, Port, RawFlow, RawPending, SLOT_OF_NO_PORT, UdpFlow, UdpKey};
use crate::memory::{Memory, memory};
use crate::place::Place;
use crate::rules::{RulesInForce, UdpPort};
use crate::sizes;
use crate::tables::{REFUSING, Tables};

/// The longest life of a half-open connection: the kernel's five SYN-ACKs take 63 s (tcp_synack_retries).
const PENDING_LIFE: Duration = Duration::from_secs(70);

/// The state of one network namespace.
#[derive(Debug, Clone)]
pub struct Status {
    /// By port, or by range: ports that are counted together.
    pub ports: Vec<PortStatus>,
    /// The rules of each attachment, by [`PortStatus::attachment`].
    pub rules: BTreeMap<u8, RulesInForce>,
    /// The programs are those of this build of truepeer.
    pub has_current_programs: bool,
    /// Packets from senders that were dropped because their port could not be found: they have more IPv6
    /// extension headers than any real packet.
    pub refused_unread: u64,
    /// Handshakes that the kernel gives up while they wait for their header go on. Otherwise they end with
    /// their header's refusal.
    pub begins_again: bool,
    /// The inode of the network namespace, as /proc/PID/ns/net shows it; 0: unknown.
    pub netns: u64,
    /// The cgroup of the attached container has ended, and its hooks with it: new connections are refused.
    pub is_cgroup_gone: bool,
    /// Kernel memory.
    pub memory: Memory,
    /// How many TCP connections may be open at a time.
    pub max_flows: u32,
    /// How many UDP flows are remembered.
    pub max_udp_flows: u32,
}

/// The state of one port, or of several that are counted together.
#[derive(Debug, Clone)]
pub struct PortStatus {
    /// Its number; the lowest.
    pub port: u16,
    /// All of them.
    pub ports: BTreeSet<u16>,
    /// The attachment that it belongs to: ports of one number have the same rules.
    pub attachment: u8,
    /// Detached, and waiting for open connections; new ones are not checked.
    pub draining: bool,
    /// New connections are refused meanwhile; otherwise they pass with their header.
    pub refusing: bool,
    /// Its load.
    pub traffic: Traffic,
    /// Each counter with its value since the port was first attached.
    pub counters: Vec<(&'static PortCounter, u64)>,
}

/// The load of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// TCP: open connections.
    Tcp(FlowCount),
    /// UDP: the backend's port, and the number of flows whose clients are answered through their senders
    /// ([`crate::Rules::udp_silence`]).
    Udp(UdpPort, usize),
}

/// Open connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Connections whose packets are not altered.
    pub untouched: usize,
    /// Connections whose sequence numbers are translated.
    pub translated: usize,
    /// Connections without a socket: their header is incomplete, or the accept queue is full.
    pub awaiting_header: usize,
}

impl FlowCount {
    /// The connections that a detachment waits for.
    pub fn total(self) -> usize {
        self.untouched + self.translated + self.awaiting_header
    }
}

/// Reads the state of a place. `None` if nothing is attached.
pub fn status(place: &Place) -> Result<Option<Status>, AttachError> {
    status_among(place, &Living::default())
}

/// Reads the state of one place of many: the hierarchy of cgroups is read once for all of them.
pub fn status_among(place: &Place, cgroups: &Living) -> Result<Option<Status>, AttachError> {
    if !place.exists()? {
        return Ok(None);
    }
    let tables = Tables::open(place)?;
    let (flows, pending) = (tables.flows(), live(tables.pending()));
    let known = tables.ports()?;
    let ports = together(known.iter().map(|(number, port)| (*number, *port, 0, ()))).into_values();
    // Ports of a range that drain have the counters of the range: they are shown once.
    let mut shown = BTreeSet::new();
    let mut counters =
        |slot| if shown.insert(slot) { tables.counters(slot) } else { Ok(vec![0; COUNTERS.len()]) };
    let ports = ports.map(|(port, (), numbers)| {
        Ok(PortStatus {
            port: numbers.first().copied().unwrap_or_default(),
            attachment: port.group,
            draining: port.state != 0,
            refusing: port.state == REFUSING,
            traffic: Traffic::Tcp(count(&numbers, &flows, &pending)),
            counters: counters_of(Of::Tcp, counters(port.counters)?),
            ports: numbers,
        })
    });
    let mut ports = ports.collect::<Result<Vec<_>, AttachError>>()?;
    ports.sort_by_key(|port| port.port);
    let (udp_flows, udp_ports) = (tables.udp_flows(), tables.udp_ports()?);
    let udp_ports = together(udp_ports.iter().map(|(number, udp_port)| {
        let backend = u16::from_be_bytes(udp_port.backend_port);
        (*number, udp_port.port, if backend == *number { 0 } else { backend }, *udp_port)
    }));
    let mut udp = Vec::new();
    for (_, udp_port, numbers) in udp_ports.into_values() {
        let silence = tables.udp_silence(udp_port.port.group)?;
        udp.push(PortStatus {
            port: numbers.first().copied().unwrap_or_default(),
            attachment: udp_port.port.group,
            draining: false,
            refusing: false,
            traffic: Traffic::Udp(udp_port.rule(), count_udp(&numbers, &udp_flows, silence)),
            counters: counters_of(Of::Udp, counters(udp_port.port.counters)?),
            ports: numbers,
        });
    }
    udp.sort_by_key(|port| port.port);
    ports.extend(udp);
    let unread = counters_of(Of::Both, tables.counters(SLOT_OF_NO_PORT)?);
    let refused_unread = unread.into_iter().map(|(_, count)| count).sum();
    let groups: BTreeSet<u8> = ports.iter().map(|port| port.attachment).collect();
    Ok(Some(Status {
        rules: tables.rules_of(groups.into_iter())?,
        has_current_programs: tables.has_current_programs()?,
        ports,
        refused_unread,
        begins_again: tables.begins_again()?,
        netns: tables.netns()?,
        is_cgroup_gone: cgroups.is_cgroup_gone(place),
        memory: memory(place)?,
        max_flows: sizes::size_of(place, "tp_flows")?,
        max_udp_flows: sizes::size_of(place, "tp_udp_flows")?,
    }))
}

/// The value of one counter of each UDP port, without reading the flows; of a range, by its lowest port.
/// Empty if nothing is attached.
pub fn counted_at_udp_ports(place: &Place, name: &str) -> Result<Vec<(u16, u64)>, AttachError> {
    let counter = COUNTERS.iter().position(|counter| counter.name == name);
    let Some(counter) = counter.filter(|_| place.exists().unwrap_or(true)) else { return Ok(Vec::new()) };
    let tables = Tables::open(place)?;
    let mut lowest = BTreeMap::new();
    for (port, udp_port) in tables.udp_ports()? {
        lowest.entry(udp_port.port.counters).or_insert(port);
    }
    lowest.into_iter().map(|(slot, port)| Ok((port, tables.count_of(slot, counter)?))).collect()
}

/// Ports that are counted together, and treated alike. Of one slot, those that are attached come first.
fn together<T>(
    ports: impl Iterator<Item = (u16, Port, u16, T)>,
) -> BTreeMap<[u16; 4], (Port, T, BTreeSet<u16>)> {
    let mut all = BTreeMap::new();
    for (number, port, mapped_to, known) in ports {
        let key = [port.counters, port.state.into(), port.group.into(), mapped_to];
        let (_, _, numbers) = all.entry(key).or_insert_with(|| (port, known, BTreeSet::new()));
        numbers.insert(number);
    }
    all
}

fn counters_of(of: Of, values: Vec<u64>) -> Vec<(&'static PortCounter, u64)> {
    let is_wanted = |counter: &PortCounter| counter.of == of || counter.of == Of::Both;
    COUNTERS.iter().zip(values).filter(|(counter, _)| is_wanted(counter)).collect()
}

/// Each flow is stored twice: under its local address, and as its client's newest. Only the latter counts.
fn count_udp(ports: &BTreeSet<u16>, flows: &[(UdpKey, UdpFlow)], silence: Duration) -> usize {
    let now = now();
    let is_live = |flow: &UdpFlow| now.saturating_sub(Duration::from_nanos(flow.seen_ns)) <= silence;
    let is_newest = |key: &UdpKey| key.local.0 == [0; 16];
    let is_ours = |flow: &UdpFlow| ports.contains(&u16::from_be_bytes(flow.port));
    flows.iter().filter(|(key, flow)| is_ours(flow) && is_newest(key) && is_live(flow)).count()
}

fn count(ports: &BTreeSet<u16>, flows: &[(FlowKey, RawFlow)], pending: &[FlowKey]) -> FlowCount {
    let is_ours = |key: &FlowKey| ports.contains(&u16::from_be_bytes(key.local_port));
    let ours = || flows.iter().filter(|(key, _)| is_ours(key));
    let translated = ours().filter(|(_, flow)| flow.delta != 0).count();
    FlowCount {
        untouched: ours().count() - translated,
        translated,
        awaiting_header: pending.iter().filter(|key| is_ours(key)).count(),
    }
}

/// Those whose handshake the kernel has not given up.
pub(crate) fn live(pending: Vec<(FlowKey, RawPending)>) -> Vec<FlowKey> {
    let now = now();
    let is_live =
        |pending: &RawPending| now.saturating_sub(Duration::from_nanos(pending.born_ns)) < PENDING_LIFE;
    pending.into_iter().filter(|(_, pending)| is_live(pending)).map(|(key, _)| key).collect()
}

/// The clock of bpf_ktime_get_ns().
pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
