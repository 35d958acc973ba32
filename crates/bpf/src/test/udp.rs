//! For tests: runs `udp_ingress` by BPF_PROG_TEST_RUN, with the tables and sockets of this network namespace.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use aya::Pod;
use aya::maps::{HashMap, Map, MapData};
use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions};
use typed_arena::Arena;

use crate::counters::COUNTERS;
use crate::error::AttachError;
use crate::layout::{Address, FlowKey};
use crate::load::{Global, Loaded, Loader};
use crate::place::Place;
use crate::programs::{UDP_INGRESS, UDP_SEND};
use crate::rules::{Others, Rules};
use crate::sizes::Sizes;
use crate::tables::Tables;

/// The result for a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is passed on; whether it is marked as validated.
    Passed { frame: Vec<u8>, is_validated: bool },
    /// It is dropped.
    Dropped,
}

/// A stored flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Learnt {
    /// The client as the backend identifies it.
    pub client: SocketAddr,
    /// The destination of its datagrams.
    pub local: IpAddr,
    /// The sender's address.
    pub sender: SocketAddr,
    /// The destination port of the sender's datagrams.
    pub port: u16,
    /// The backend's port.
    pub backend_port: u16,
    /// Whether it is the client's newest flow, which is stored under no address.
    pub is_newest: bool,
}

/// The stored client of a sender whose later datagrams have no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// The sender.
    pub sender: SocketAddr,
    /// Where it sends to.
    pub to: SocketAddr,
    /// The client as the backend identifies it.
    pub client: SocketAddr,
    /// Whether a header named it.
    pub is_named: bool,
}

/// `struct udp_named`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawNamed {
    _seen_and_version: [u64; 2],
    client: Address,
    client_port: [u8; 2],
    is_named: u16,
    _unused: u32,
}

// SAFETY: a struct of integers without padding: any bytes are valid.
unsafe impl Pod for RawNamed {}

/// The loaded program with its tables.
pub struct UdpHarness {
    ingress: Loaded,
    tables: Tables,
    named: HashMap<MapData, FlowKey, RawNamed>,
}

const ETHERNET: u32 = 14;
/// `struct __sk_buff`, and two of its fields.
const CONTEXT: usize = 192;
const PRIORITY: usize = 32;
const INGRESS_IFINDEX: usize = 36;
const LOOPBACK: u32 = 1;
const LONGEST: usize = 4096;
/// TC_ACT_SHOT.
const DROPPED: u32 = 2;

impl UdpHarness {
    /// Loads it. Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.
    pub fn open(place: &Place, rules: &Rules) -> Result<Self, AttachError> {
        place.make()?;
        let globals = Arena::new();
        let mut loader = Loader::new(place, &globals);
        loader.size(Sizes::of(rules, false)?.all());
        loader.load(UDP_SEND)?;
        loader.set(Global::LinkHeaderLen(ETHERNET));
        let mut ingress = loader.load(UDP_INGRESS)?;
        let mut tables = Tables::open(place)?;
        tables.apply(rules, true, Others::Leave)?;
        classifier(&mut ingress)
            .and_then(SchedClassifier::load)
            .map_err(AttachError::attach(UDP_INGRESS.name, "the kernel"))?;
        let named = MapData::from_pin(place.maps().join("tp_udp_named"));
        let named = named.and_then(|map| Map::LruHashMap(map).try_into());
        Ok(Self { ingress, tables, named: named.map_err(AttachError::map("opening", "tp_udp_named"))? })
    }

    /// Passes a frame as if it arrived on the loopback device.
    pub fn ingress(&mut self, frame: &[u8]) -> Result<Outcome, AttachError> {
        let mut context = [0; CONTEXT];
        context[INGRESS_IFINDEX..][..4].copy_from_slice(&LOOPBACK.to_ne_bytes());
        let (mut after, mut out) = ([0; CONTEXT], vec![0; LONGEST]);
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ctx_out: Some(&mut after),
            ..TestRunOptions::default()
        };
        let result = classifier(&mut self.ingress).and_then(|program| program.test_run(options));
        let result = result.map_err(AttachError::attach(UDP_INGRESS.name, "BPF_PROG_TEST_RUN"))?;
        if result.return_value == DROPPED {
            return Ok(Outcome::Dropped);
        }
        out.truncate(result.data_size_out as usize);
        Ok(Outcome::Passed { frame: out, is_validated: after[PRIORITY..][..4] != [0; 4] })
    }

    /// All stored flows, in order.
    pub fn learnt(&self) -> Vec<Learnt> {
        let flows = self.tables.udp_flows().into_iter();
        let learnt = flows.map(|(key, flow)| Learnt {
            client: SocketAddr::new(ip(key.client), u16::from_be_bytes(key.client_port)),
            local: ip(flow.local),
            sender: SocketAddr::new(ip(flow.sender), u16::from_be_bytes(flow.sender_port)),
            port: u16::from_be_bytes(flow.port),
            backend_port: u16::from_be_bytes(key.backend_port),
            is_newest: key.local.0 == [0; 16],
        });
        let mut learnt: Vec<Learnt> = learnt.collect();
        learnt.sort_unstable();
        learnt
    }

    /// The clients of senders whose later datagrams have no header, in order.
    pub fn named(&self) -> Vec<Named> {
        let named = self.named.iter().flatten().map(|(key, named)| Named {
            sender: SocketAddr::new(ip(key.remote), u16::from_be_bytes(key.remote_port)),
            to: SocketAddr::new(ip(key.local), u16::from_be_bytes(key.local_port)),
            client: SocketAddr::new(ip(named.client), u16::from_be_bytes(named.client_port)),
            is_named: named.is_named != 0,
        });
        let mut named: Vec<Named> = named.collect();
        named.sort_unstable();
        named
    }

    /// Removes all stored flows.
    pub fn forget(&mut self) -> Result<(), AttachError> {
        let keys: Vec<FlowKey> = self.named.keys().flatten().collect();
        let removed = keys.iter().try_for_each(|key| self.named.remove(key));
        removed.map_err(AttachError::map("removing from", "tp_udp_named"))?;
        self.tables.forget_udp_flows()
    }

    /// Each counter of a port with its name.
    pub fn counters(&self, port: u16) -> Result<Vec<(&'static str, u64)>, AttachError> {
        let slot = self.tables.udp_ports()?.get(&port).map_or(0, |udp_port| udp_port.port.counters);
        let values = self.tables.counters(slot)?;
        Ok(COUNTERS.iter().map(|counter| counter.name).zip(values).collect())
    }
}

fn ip(address: Address) -> IpAddr {
    Ipv6Addr::from(address.0).to_canonical()
}

fn classifier(loaded: &mut Loaded) -> Result<&mut SchedClassifier, ProgramError> {
    loaded.program(UDP_INGRESS.name).try_into()
}
