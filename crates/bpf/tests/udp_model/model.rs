//! A model of `udp_ingress`, written independently of its code: bytes in, a decision and a table out.
//!
//! Checksums are computed from scratch, never incrementally. `truepeer-proto` parses the headers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use truepeer_bpf::test::udp::{Learnt, Named};
use truepeer_policy::{Dialect, SpecialRange};
use truepeer_proto::{Addresses, Command, Limits, Transport, Versions, decode_datagram, spp};

/// An attached port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UdpPort {
    pub(crate) backend_port: u16,
    pub(crate) dialect: Dialect,
    pub(crate) is_bound: bool,
}

/// The required fate of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It passes unchanged.
    Untouched,
    Dropped,
    /// To the backend, from this client; whether the checksums are valid.
    Delivered {
        from: SocketAddr,
        to: SocketAddr,
        payload: Vec<u8>,
        is_datagram_intact: bool,
    },
}

pub(crate) struct Model {
    pub(crate) udp_ports: BTreeMap<u16, UdpPort>,
    pub(crate) senders: fn(IpAddr) -> bool,
    pub(crate) is_here: fn(IpAddr) -> bool,
    flows: BTreeMap<(SocketAddr, u16), Flows>,
    /// By sender and destination; whether a header named the client.
    named: BTreeMap<(SocketAddr, SocketAddr), (SocketAddr, bool)>,
}

/// One client's flows: the newest, and those to other addresses of this host.
#[derive(Debug, Default)]
struct Flows {
    newest: Option<Flow>,
    others: BTreeMap<IpAddr, Flow>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flow {
    sender: SocketAddr,
    local: IpAddr,
    port: u16,
    spp: Option<spp::Spp>,
    /// Named by a header; a sender may always be its own client.
    is_named: bool,
}

/// A datagram in a packet, as a kernel would parse it.
struct Datagram<'a> {
    from: SocketAddr,
    to: SocketAddr,
    payload: &'a [u8],
    is_datagram_intact: bool,
}

enum Reading<'a> {
    /// None, or a kernel drops it because of its lengths.
    Nothing,
    /// Only its ports.
    Refused {
        from: IpAddr,
        to: SocketAddr,
    },
    Whole(Datagram<'a>),
}

impl Model {
    pub(crate) fn new(
        udp_ports: BTreeMap<u16, UdpPort>,
        senders: fn(IpAddr) -> bool,
        is_here: fn(IpAddr) -> bool,
    ) -> Model {
        Model { udp_ports, senders, is_here, flows: BTreeMap::new(), named: BTreeMap::new() }
    }

    pub(crate) fn forget(&mut self) {
        self.flows.clear();
        self.named.clear();
    }

    pub(crate) fn learnt(&self) -> Vec<Learnt> {
        let mut all = Vec::new();
        for ((client, backend_port), flows) in &self.flows {
            let learnt = |flow: &Flow, is_newest| Learnt {
                client: *client,
                local: flow.local,
                sender: flow.sender,
                port: flow.port,
                backend_port: *backend_port,
                is_newest,
            };
            all.extend(flows.newest.iter().map(|flow| learnt(flow, true)));
            all.extend(flows.others.values().map(|flow| learnt(flow, false)));
        }
        all.sort_unstable();
        all
    }

    pub(crate) fn named(&self) -> Vec<Named> {
        let named = self.named.iter();
        named.map(|(&(sender, to), &(client, is_named))| Named { sender, to, client, is_named }).collect()
    }

    pub(crate) fn ingress(&mut self, frame: &[u8]) -> Expected {
        match read(frame) {
            Reading::Nothing => Expected::Untouched,
            Reading::Refused { from, to } => match self.udp_ports.get(&to.port()) {
                Some(_) if (self.senders)(from) => self.refuse(to.ip()),
                _ => Expected::Untouched,
            },
            Reading::Whole(datagram) => match self.udp_ports.get(&datagram.to.port()).copied() {
                Some(udp_port) if (self.senders)(datagram.from.ip()) => {
                    self.validate_client(&datagram, udp_port)
                }
                _ => Expected::Untouched,
            },
        }
    }

    fn refuse(&self, to: IpAddr) -> Expected {
        if to.is_multicast() || (self.is_here)(to) { Expected::Dropped } else { Expected::Untouched }
    }

    fn validate_client(&mut self, datagram: &Datagram<'_>, udp_port: UdpPort) -> Expected {
        let key = (datagram.from, datagram.to);
        let has_bare = udp_port.dialect.has_bare_datagrams();
        let of_flow = self.named.get(&key).copied().filter(|_| has_bare);
        let opened = match of_flow {
            Some((client, is_named)) => Some((0, is_named.then_some(client), None)),
            None => open(datagram.payload, udp_port.dialect),
        };
        let Some((header_len, named, spp)) = opened else {
            return self.refuse(datagram.to.ip());
        };
        let (mut client, mut is_named) = (datagram.from, false);
        if let Some(name) = named {
            if SpecialRange::of(name.ip()).is_some() {
                // The rest of its flow is refused, too.
                if has_bare && of_flow.is_none() && datagram.is_datagram_intact {
                    self.named.insert(key, (with_port(name, datagram.from), true));
                }
                return self.refuse(datagram.to.ip());
            }
            if name.is_ipv4() == datagram.from.is_ipv4() {
                (client, is_named) = (with_port(name, datagram.from), true);
            } else if udp_port.dialect == Dialect::Spp {
                return self.refuse(datagram.to.ip());
            }
        }
        let begins_flow = has_bare && of_flow.is_none() && (self.is_here)(datagram.to.ip());
        if begins_flow {
            if !datagram.is_datagram_intact {
                return Expected::Dropped;
            }
            self.forget_earlier_sender((client, udp_port.backend_port), datagram.to.ip());
            self.named.insert(key, (client, is_named));
        }
        if !udp_port.is_bound || !(self.is_here)(datagram.to.ip()) {
            return Expected::Untouched;
        }
        let needs_flow =
            is_named || udp_port.dialect == Dialect::Spp || datagram.to.port() != udp_port.backend_port;
        let flow = needs_flow.then(|| Flow {
            sender: datagram.from,
            local: datagram.to.ip(),
            port: datagram.to.port(),
            spp,
            is_named,
        });
        if !self.learn((client, udp_port.backend_port), datagram, flow) {
            return Expected::Dropped;
        }
        let is_header_alone = header_len > 0 && header_len == datagram.payload.len();
        if udp_port.dialect == Dialect::Standalone && is_header_alone {
            return Expected::Dropped;
        }
        Expected::Delivered {
            from: client,
            to: SocketAddr::new(datagram.to.ip(), udp_port.backend_port),
            payload: datagram.payload[header_len..].to_vec(),
            is_datagram_intact: datagram.is_datagram_intact,
        }
    }

    /// The client comes by another port of its sender.
    fn forget_earlier_sender(&mut self, key: (SocketAddr, u16), local: IpAddr) {
        let Some(flows) = self.flows.get(&key) else { return };
        let newest = flows.newest.filter(|newest| newest.local == local);
        let Some(flow) = newest.or_else(|| flows.others.get(&local).copied()) else { return };
        let earlier = (flow.sender, SocketAddr::new(local, flow.port));
        if self.named.get(&earlier).is_some_and(|(client, _)| *client == key.0) {
            self.named.remove(&earlier);
        }
    }

    /// Whether it may be stored, or need not be.
    fn learn(&mut self, key: (SocketAddr, u16), datagram: &Datagram<'_>, flow: Option<Flow>) -> bool {
        let local = datagram.to.ip();
        let flows = self.flows.entry(key).or_default();
        let Some(flow) = flow else {
            let is_known =
                flows.newest.is_some_and(|newest| newest.local == local || flows.others.contains_key(&local));
            if is_known && datagram.is_datagram_intact {
                flows.others.remove(&local);
                flows.newest = None;
            }
            return !is_known || datagram.is_datagram_intact;
        };
        if flows.newest == Some(flow) {
            return true;
        }
        if datagram.is_datagram_intact {
            let last = flows.newest.replace(flow);
            if let Some(last) = last.filter(|last| last.local != local) {
                flows.others.insert(last.local, last);
                flows.others.remove(&local);
            }
        }
        datagram.is_datagram_intact
    }
}

/// A client without a port has its sender's.
fn with_port(client: SocketAddr, sender: SocketAddr) -> SocketAddr {
    SocketAddr::new(client.ip(), if client.port() == 0 { sender.port() } else { client.port() })
}

/// The header's length, and the client that it names. `None`: refused.
fn open(payload: &[u8], dialect: Dialect) -> Option<(usize, Option<SocketAddr>, Option<spp::Spp>)> {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    if dialect == Dialect::Spp {
        let header = spp::decode(payload).ok()?;
        return Some((spp::LEN, Some(canonical(header.client)), Some(header)));
    }
    let (trimmed, len) = without_tlvs(payload)?;
    let limits = Limits { versions: Versions::V2, ..Limits::default() };
    let (header, _) = decode_datagram(&trimmed, limits).ok()?;
    let named = match (header.command, header.addresses) {
        (Command::Proxy, Addresses::Inet { transport: Transport::Dgram, source, .. }) => {
            Some(canonical(source))
        }
        _ => None,
    };
    Some((len, named, None))
}

/// The header without its TLVs, which the program doesn't read, and its length including them.
fn without_tlvs(payload: &[u8]) -> Option<(Vec<u8>, usize)> {
    let declared = short(payload, 14)?;
    let block = match (payload[12] & 0x0f, payload[13] >> 4, payload[13] & 0x0f) {
        (0, ..) | (_, _, 0) => 0,
        (_, 1, _) => 12,
        (_, 2, _) => 36,
        (_, 3, _) => 216,
        _ => 0,
    };
    let mut header = payload.get(..16 + declared)?.to_vec();
    if declared >= block {
        header.truncate(16 + block);
        header[14..16].copy_from_slice(&u16::try_from(block).unwrap_or_default().to_be_bytes());
    }
    Some((header, 16 + declared))
}

const UDP: u8 = 17;
const FRAGMENT: u8 = 44;

fn read(frame: &[u8]) -> Reading<'_> {
    let packet = frame.get(14..).unwrap_or_default();
    match frame.get(12..14) {
        Some([0x08, 0x00]) => read_ipv4(packet).unwrap_or(Reading::Nothing),
        Some([0x86, 0xdd]) => read_ipv6(packet).unwrap_or(Reading::Nothing),
        _ => Reading::Nothing,
    }
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

fn read_ipv4(packet: &[u8]) -> Option<Reading<'_>> {
    let (header_len, len) = (usize::from(packet.first()? & 0x0f) * 4, short(packet, 2)?);
    let (fragment, protocol) = (short(packet, 6)?, *packet.get(9)?);
    let address =
        |at: usize| Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?)));
    let (from, to) = (address(12)?, address(16)?);
    if packet[0] >> 4 != 4
        || header_len < 20
        || protocol != UDP
        || fragment & 0x1fff != 0
        || len > packet.len()
    {
        return None;
    }
    let udp = packet.get(header_len..len)?;
    let is_datagram_intact = sum(&packet[..header_len]) == 0xffff;
    read_udp(from, to, udp, is_datagram_intact, fragment & 0x2000 != 0)
}

fn read_ipv6(packet: &[u8]) -> Option<Reading<'_>> {
    let end = 40 + short(packet, 4)?;
    let address =
        |at: usize| Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?)));
    let (from, to) = (address(8)?, address(24)?);
    let next = *packet.get(6)?;
    if packet[0] >> 4 == 6 && next == UDP && end <= packet.len() {
        return read_udp(from, to, packet.get(40..end)?, true, false);
    }
    read_behind(packet, next, from, to)
}

/// A packet with extension headers is refused, whatever it contains.
fn read_behind(packet: &[u8], mut next: u8, from: IpAddr, to: IpAddr) -> Option<Reading<'_>> {
    let (mut at, mut is_behind) = (40, false);
    while next != UDP {
        let (following, units) = (*packet.get(at)?, usize::from(*packet.get(at + 1)?));
        packet.get(at..at + 8)?;
        match next {
            FRAGMENT if short(packet, at + 2)? & 0xfff8 != 0 => return None,
            FRAGMENT => at += 8,
            0 | 43 | 60 => at += 8 * (units + 1),
            _ => return None,
        }
        (next, is_behind) = (following, true);
    }
    let port = u16::try_from(short(packet, at + 2)?).ok()?;
    is_behind.then_some(Reading::Refused { from, to: SocketAddr::new(to, port) })
}

fn read_udp(
    from: IpAddr,
    to: IpAddr,
    udp: &[u8],
    is_datagram_intact: bool,
    is_fragment: bool,
) -> Option<Reading<'_>> {
    let (source, destination) = (u16::try_from(short(udp, 0)?).ok()?, u16::try_from(short(udp, 2)?).ok()?);
    let (len, check) = (short(udp, 4)?, short(udp, 6)?);
    let to = SocketAddr::new(to, destination);
    if is_fragment || (len == 0 && from.is_ipv6()) {
        return Some(Reading::Refused { from, to });
    }
    let udp = udp.get(..len)?;
    let payload = udp.get(8..)?;
    let is_right = match check {
        0 => from.is_ipv4(),
        _ => sum_of_udp(from, to.ip(), udp) == 0xffff,
    };
    Some(Reading::Whole(Datagram {
        from: SocketAddr::new(from, source),
        to,
        payload,
        is_datagram_intact: is_datagram_intact && is_right,
    }))
}

/// The sum of 16-bit words, with the carries added.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

pub(crate) fn sum_of_udp(from: IpAddr, to: IpAddr, udp: &[u8]) -> u32 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let len = u16::try_from(udp.len()).unwrap_or(u16::MAX).to_be_bytes();
    sum(&[octets(from), octets(to), vec![0, UDP], len.to_vec(), udp.to_vec()].concat())
}

/// The contents of an accepted frame, and whether its checksums are valid.
pub(crate) fn delivered(frame: &[u8]) -> Option<Expected> {
    let Reading::Whole(datagram) = read(frame) else { return None };
    let Datagram { from, to, payload, is_datagram_intact } = datagram;
    Some(Expected::Delivered { from, to, payload: payload.to_vec(), is_datagram_intact })
}
