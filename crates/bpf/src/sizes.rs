//! How many entries each table has: few by default, because every network namespace with an attachment has
//! its own tables.

use std::num::NonZeroU32;

use aya::maps::MapData;
use aya::util::nr_cpus;
use truepeer_policy::Dialect;

use crate::error::AttachError;
use crate::place::Place;
use crate::rules::Rules;

/// A handshake is short: there is one for many open connections.
const FLOWS_PER_PENDING: u32 = 8;
/// Twice the usual limit of a listener's backlog (net.core.somaxconn).
const PENDING: u32 = 8192;
/// Only translated connections that this host has closed first leave something.
const FLOWS_PER_ENDED: u32 = 64;
/// Senders.
const GUESSES: u32 = 512;
/// Before Linux 6.17 each processor keeps up to 128 free entries of an LRU table for itself
/// (LOCAL_FREE_TARGET). Entries in use would be replaced early if that were most of the table.
const LEAST_PER_CPU: u32 = 256;
/// Answers on their way at one moment, unless many more flows are wanted; at most 16 bits, which a port has.
const SLOTS: std::ops::RangeInclusive<u32> = 2048..=65536;
/// The table of a protocol that is not attached.
const NONE: u32 = 1;

/// The tables whose size depends on the rules.
pub(crate) struct Sizes {
    tcp: [(&'static str, u32); 4],
    udp: [(&'static str, u32); 3],
}

impl Sizes {
    pub(crate) fn of(rules: &Rules, has_tcp: bool) -> Result<Self, AttachError> {
        let cpus = nr_cpus().map_err(|(_, error)| AttachError::file("reading", "the processors")(error))?;
        let least = u32::try_from(cpus).unwrap_or(u32::MAX).saturating_mul(LEAST_PER_CPU);
        let tcp = |count: u32| if has_tcp { count.max(1) } else { NONE };
        let udp = |count: u32| if rules.udp_ports.is_empty() { NONE } else { count };
        let flows = rules.max_flows.get();
        Ok(Self {
            tcp: [
                ("tp_flows", tcp(flows)),
                ("tp_pending", tcp((flows / FLOWS_PER_PENDING).max(PENDING).max(least))),
                ("tp_ended", tcp((flows / FLOWS_PER_ENDED).max(least))),
                ("tp_guesses", tcp(GUESSES)),
            ],
            udp: [
                ("tp_udp_flows", udp(rules.max_udp_flows.get().max(least))),
                ("tp_udp_slots", udp(slots(rules))),
                ("tp_udp_named", udp(named(rules, least))),
            ],
        })
    }

    /// Those of the tables that are there.
    pub(crate) fn in_place(place: &Place) -> Result<Self, AttachError> {
        let of = |name: &'static str| Ok::<_, AttachError>((name, size_of(place, name)?));
        Ok(Self {
            tcp: [of("tp_flows")?, of("tp_pending")?, of("tp_ended")?, of("tp_guesses")?],
            udp: [of("tp_udp_flows")?, of("tp_udp_slots")?, of("tp_udp_named")?],
        })
    }

    /// How many entries a table has; `None`: its protocol is not attached.
    pub(crate) fn in_use(place: &Place, table: &str) -> Result<Option<NonZeroU32>, AttachError> {
        Ok(NonZeroU32::new(size_of(place, table)?).filter(|size| size.get() != NONE))
    }

    pub(crate) fn tcp(&self) -> &[(&'static str, u32)] {
        &self.tcp
    }

    pub(crate) fn udp(&self) -> &[(&'static str, u32)] {
        &self.udp
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.tcp.iter().chain(&self.udp).copied()
    }

    /// How many slots there are: a power of two.
    pub(crate) fn slots(&self) -> u32 {
        self.udp[1].1
    }
}

/// How many entries a table has room for.
pub(crate) fn size_of(place: &Place, name: &str) -> Result<u32, AttachError> {
    let info = MapData::from_pin(place.maps().join(name)).and_then(|map| map.info());
    Ok(info.map_err(AttachError::map("opening", "a table"))?.max_entries())
}

/// Only a port that is mapped, and SPP, need slots (`c/attach/udp_slots.h`).
fn slots(rules: &Rules) -> u32 {
    let needs_one = rules
        .udp_ports
        .iter()
        .any(|(port, udp_port)| udp_port.dialect == Dialect::Spp || udp_port.backend_port != *port);
    if !needs_one {
        return NONE;
    }
    let flows = rules.max_udp_flows.get().clamp(*SLOTS.start(), *SLOTS.end());
    flows.next_power_of_two()
}

/// Only where later datagrams have no header, their senders are remembered (`c/attach/udp_named.h`).
fn named(rules: &Rules, least: u32) -> u32 {
    let has_bare = rules.udp_ports.values().any(|udp_port| udp_port.dialect.has_bare_datagrams());
    if has_bare { rules.max_udp_flows.get().max(least) } else { NONE }
}

/// The default of [`Rules::max_flows`].
pub const MAX_FLOWS: NonZeroU32 = NonZeroU32::MIN.saturating_add((1 << 15) - 1);

/// The default of [`Rules::max_udp_flows`].
pub const MAX_UDP_FLOWS: NonZeroU32 = NonZeroU32::MIN.saturating_add((1 << 11) - 1);
