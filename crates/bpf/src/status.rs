//! What is attached, and what it does.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::layout::{Embryo, Flow, FlowKey};
use crate::tables::Tables;
use crate::{AttachError, COUNTERS, Counter, Place};

/// How long a half-open connection can live: the kernel's five SYN-ACKs take 63 s (tcp_synack_retries).
const EMBRYO_LIFE: Duration = Duration::from_secs(70);

/// The state of one network namespace.
#[derive(Debug, Clone)]
pub struct Status {
    /// By port.
    pub ports: Vec<PortStatus>,
}

/// The state of one port.
#[derive(Debug, Clone)]
pub struct PortStatus {
    /// Its number.
    pub port: u16,
    /// Detached: no new connections.
    pub draining: bool,
    /// Open connections.
    pub flows: FlowCount,
    /// Each counter with its value since the port was first attached.
    pub counters: Vec<(&'static Counter, u64)>,
}

/// Open connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Whose packets are not altered.
    pub untouched: usize,
    /// Whose sequence numbers are translated.
    pub translated: usize,
    /// Whose header isn't complete.
    pub awaiting_header: usize,
}

impl FlowCount {
    /// Connections that a detachment has to wait for.
    pub fn total(self) -> usize {
        self.untouched + self.translated + self.awaiting_header
    }
}

/// Reads the state of a place; `None` if nothing is attached.
pub fn status(place: &Place) -> Result<Option<Status>, AttachError> {
    if !place.exists() {
        return Ok(None);
    }
    let tables = Tables::open(place)?;
    let (flows, embryos) = (tables.flows(), live(tables.embryos()));
    let ports = tables.ports()?.into_iter().map(|(number, port)| {
        Ok(PortStatus {
            port: number,
            draining: port.draining != 0,
            flows: count(number, &flows, &embryos),
            counters: COUNTERS.iter().zip(tables.counters(&port)?).collect(),
        })
    });
    Ok(Some(Status { ports: ports.collect::<Result<_, AttachError>>()? }))
}

fn count(port: u16, flows: &[(FlowKey, Flow)], embryos: &[FlowKey]) -> FlowCount {
    let is_ours = |key: &FlowKey| key.local_port == port.to_be_bytes();
    let ours = || flows.iter().filter(|(key, _)| is_ours(key));
    let translated = ours().filter(|(_, flow)| flow.delta != 0).count();
    FlowCount {
        untouched: ours().count() - translated,
        translated,
        awaiting_header: embryos.iter().filter(|key| is_ours(key)).count(),
    }
}

/// Those whose handshake the kernel has not given up.
fn live(embryos: Vec<(FlowKey, Embryo)>) -> Vec<FlowKey> {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default());
    let is_live = |embryo: &Embryo| now.saturating_sub(Duration::from_nanos(embryo.born_ns)) < EMBRYO_LIFE;
    embryos.into_iter().filter(|(_, embryo)| is_live(embryo)).map(|(key, _)| key).collect()
}
