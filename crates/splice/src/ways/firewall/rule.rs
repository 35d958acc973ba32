//! A rule of nftables, as far as it matters to the later packets of a session or flow.

use std::net::{IpAddr, SocketAddr};

use truepeer_sys::notices::attributes;

/// Bits of NF_CT_STATE_BIT: all packets of a session behind its handshake are of an established connection.
pub(super) const ESTABLISHED: u32 = 2;
/// NFPROTO_IPV4 and NFPROTO_IPV6.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// NFT_REG_VERDICT.
const VERDICT: u32 = 0;

/// What a rule does to the packets that it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    Accept,
    Return,
    Jump(String),
    Goto(String),
    /// It drops, rejects, marks, counts, logs, or something that is unknown here.
    Acts,
}

/// A rule: the conditions that are understood, and its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// No packet of a session matches it.
    is_for_others: bool,
    /// All conditions are understood.
    is_certain: bool,
    /// Sets in which the connection's state is looked up; true: it must not be in it.
    states: Vec<(String, bool)>,
    /// A map from the connection's state to an effect.
    by_state: Option<String>,
    /// An address or port of the packet must be among each of these.
    ends: Vec<End>,
    /// The packet's family.
    family: Option<u8>,
    pub(super) effect: Effect,
}

/// A condition on an end of the connection, source or destination.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// The first bits of an address.
    Network {
        bytes: Vec<u8>,
        mask: Vec<u8>,
    },
    Port(u16),
}

/// What a rule's conditions say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matches {
    Never,
    Perhaps,
    Always,
}

/// A register of the rule's program.
#[derive(Debug, Clone)]
enum Loaded {
    /// The connection's state, and the mask that was applied.
    State(u32),
    Protocol,
    Family,
    /// The first bytes of an address, by the mask that was applied.
    Address(Vec<u8>),
    Port,
    Other,
}

impl Rule {
    /// Of `NFTA_RULE_EXPRESSIONS`; `protocol`: of the packets.
    pub(super) fn read(expressions: &[u8], protocol: u8) -> Self {
        let mut reader = Reader { protocol, registers: Vec::new(), rule: Self::of(Effect::None) };
        for (_, expression) in attributes(expressions) {
            let name = find(expression, 1).map(text).unwrap_or_default();
            reader.take(&name, find(expression, 2).unwrap_or_default());
        }
        reader.rule
    }

    fn of(effect: Effect) -> Self {
        Self {
            is_for_others: false,
            is_certain: true,
            states: Vec::new(),
            by_state: None,
            ends: Vec::new(),
            family: None,
            effect,
        }
    }

    /// The sets that have to be known.
    pub(super) fn sets(&self) -> impl Iterator<Item = &String> {
        self.states.iter().map(|(name, _)| name).chain(&self.by_state)
    }

    /// Whether it matches packets between these ends; `None`: whatever ends.
    /// `state`: what a set says of an established connection, `None` if the set is unknown.
    pub(super) fn matches(
        &self,
        ends: Option<&[SocketAddr]>,
        state: impl Fn(&str) -> Option<Option<Effect>>,
    ) -> (Matches, Effect) {
        let mut matches = if self.is_certain { Matches::Always } else { Matches::Perhaps };
        if self.is_for_others {
            matches = Matches::Never;
        }
        for (set, is_inverted) in &self.states {
            match state(set) {
                None if matches == Matches::Always => matches = Matches::Perhaps,
                None => {}
                Some(found) if found.is_some() == *is_inverted => matches = Matches::Never,
                Some(_) => {}
            }
        }
        for wanted in &self.ends {
            let concerns = ends.is_none_or(|all| all.iter().any(|end| wanted.is(*end)));
            match matches {
                _ if !concerns => matches = Matches::Never,
                Matches::Always => matches = Matches::Perhaps,
                _ => {}
            }
        }
        if let Some(family) = self.family {
            // An IPv6 socket's IPv4 connection passes the rules of IPv4.
            let is_of_it = |end: &SocketAddr| end.ip().to_canonical().is_ipv4() == (family == IPV4);
            match ends {
                Some(all) if all.iter().all(is_of_it) => {}
                Some(all) if !all.iter().any(is_of_it) => matches = Matches::Never,
                _ if matches == Matches::Always => matches = Matches::Perhaps,
                _ => {}
            }
        }
        let effect = match &self.by_state {
            None => self.effect.clone(),
            Some(map) => match state(map) {
                None => Effect::Acts,
                Some(found) => found.unwrap_or(Effect::None),
            },
        };
        (matches, effect)
    }
}

impl End {
    fn is(&self, end: SocketAddr) -> bool {
        let (bytes, mask) = match self {
            Self::Port(port) => return end.port() == *port,
            Self::Network { bytes, mask } => (bytes, mask),
        };
        // An IPv6 socket's IPv4 connection passes the rules of IPv4.
        let octets = match end.ip().to_canonical() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let is_same = |((own, mask), other): ((&u8, &u8), &u8)| own & mask == other & mask;
        octets.len() >= bytes.len() && bytes.iter().zip(mask).zip(&octets).all(is_same)
    }
}

/// Follows a rule's expressions. Numbers of attributes are those of linux/netfilter/nf_tables.h.
struct Reader {
    protocol: u8,
    registers: Vec<(u32, Loaded)>,
    rule: Rule,
}

impl Reader {
    fn take(&mut self, name: &str, data: &[u8]) {
        if self.rule.effect == Effect::Acts {
            // It has happened, whatever conditions follow.
            return;
        }
        match name {
            "ct" => self.load(
                data,
                1,
                4,
                if number(data, 2) == Some(0) { Loaded::State(u32::MAX) } else { Loaded::Other },
            ),
            "meta" => self.load(
                data,
                1,
                3,
                match number(data, 2) {
                    Some(15) => Loaded::Family,
                    Some(16) => Loaded::Protocol,
                    _ => Loaded::Other,
                },
            ),
            "payload" => self.load(data, 1, 5, payload(data)),
            "exthdr" => self.load(data, 1, 7, Loaded::Other),
            "fib" | "rt" | "osf" | "numgen" => self.load(data, 1, u16::MAX, Loaded::Other),
            "socket" | "hash" | "byteorder" => self.load(data, 2, u16::MAX, Loaded::Other),
            "bitwise" => self.mask(data),
            "cmp" => self.compare(data),
            "lookup" => self.look_up(data),
            "immediate" => self.conclude(data),
            "limit" | "connlimit" | "range" => self.rule.is_certain = false,
            "match" => self.xt_match(data),
            _ => self.rule.effect = Effect::Acts,
        }
    }

    /// `source`: the attribute of an expression that writes instead.
    fn load(&mut self, data: &[u8], register: u16, source: u16, loaded: Loaded) {
        if find(data, source).is_some() {
            self.rule.effect = Effect::Acts;
        } else if let Some(register) = number(data, register) {
            self.set(register, loaded);
        }
    }

    fn set(&mut self, register: u32, loaded: Loaded) {
        self.registers.retain(|(other, _)| *other != register);
        self.registers.push((register, loaded));
    }

    fn get(&self, register: Option<u32>) -> Loaded {
        let found = self.registers.iter().find(|(one, _)| Some(*one) == register);
        found.map_or(Loaded::Other, |(_, loaded)| loaded.clone())
    }

    fn mask(&mut self, data: &[u8]) {
        let (mask, xor) = (value(find(data, 4)), value(find(data, 5)));
        let is_plain = xor.iter().all(|byte| *byte == 0) && number(data, 6).unwrap_or(0) == 0;
        let masked = match self.get(number(data, 1)) {
            Loaded::State(_) if is_plain => native(mask).map_or(Loaded::Other, Loaded::State),
            Loaded::Address(before) if is_plain && mask.len() == before.len() => {
                Loaded::Address(mask.to_vec())
            }
            _ => Loaded::Other,
        };
        if let Some(register) = number(data, 2) {
            self.set(register, masked);
        }
    }

    fn compare(&mut self, data: &[u8]) {
        let (with, how) = (value(find(data, 3)), number(data, 2));
        let outcome = match (self.get(number(data, 1)), how) {
            (Loaded::State(mask), Some(0 | 1)) => {
                native(with).map(|with| (ESTABLISHED & mask == with) == (how == Some(0)))
            }
            (Loaded::Protocol, Some(0 | 1)) => {
                with.first().map(|with| (*with == self.protocol) == (how == Some(0)))
            }
            (Loaded::Family, Some(0)) => {
                with.first().filter(|with| [IPV4, IPV6].contains(with)).map(|with| {
                    // No packet is of two families.
                    self.rule.family.replace(*with).is_none_or(|before| before == *with)
                })
            }
            (Loaded::Address(mask), Some(0)) if with.len() == mask.len() => {
                self.rule.ends.push(End::Network { bytes: with.to_vec(), mask });
                Some(true)
            }
            (Loaded::Port, Some(0)) => with.first_chunk().map(|port| {
                self.rule.ends.push(End::Port(u16::from_be_bytes(*port)));
                true
            }),
            _ => None,
        };
        match outcome {
            Some(true) => {}
            Some(false) => self.rule.is_for_others = true,
            None => self.rule.is_certain = false,
        }
    }

    fn look_up(&mut self, data: &[u8]) {
        let set = find(data, 1).map(text).unwrap_or_default();
        let is_inverted = number(data, 5).unwrap_or(0) & 1 != 0;
        let (found, to) = (self.get(number(data, 2)), number(data, 3));
        match (found, to) {
            (Loaded::State(u32::MAX), Some(VERDICT)) => self.rule.by_state = Some(set),
            (_, Some(VERDICT)) => self.rule.effect = Effect::Acts,
            (Loaded::State(u32::MAX), None) => self.rule.states.push((set, is_inverted)),
            (_, to) => {
                self.rule.is_certain = false;
                to.into_iter().for_each(|register| self.set(register, Loaded::Other));
            }
        }
    }

    fn conclude(&mut self, data: &[u8]) {
        match number(data, 1) {
            Some(VERDICT) => self.rule.effect = find(data, 2).map_or(Effect::Acts, effect),
            register => register.into_iter().for_each(|register| self.set(register, Loaded::Other)),
        }
    }

    /// `-m conntrack --ctstate` of iptables. Other matches may hold or not.
    fn xt_match(&mut self, data: &[u8]) {
        match find(data, 1).map(text).as_deref() {
            Some("comment") => {}
            Some("conntrack") => match xt_state(number(data, 2), find(data, 3).unwrap_or_default()) {
                Some(states) if states & ESTABLISHED == 0 => self.rule.is_for_others = true,
                Some(_) => {}
                None => self.rule.is_certain = false,
            },
            _ => self.rule.is_certain = false,
        }
    }
}

/// An address, whole or in its first bytes, or a port. IPv4 has its addresses at 12 and 16, IPv6 at 8 and 24.
fn payload(data: &[u8]) -> Loaded {
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let [base, offset, length] = [2, 3, 4].map(|attribute| number(data, attribute));
    match (base, offset, length) {
        (Some(NETWORK), Some(9), Some(1)) => Loaded::Protocol,
        (Some(NETWORK), Some(12 | 16), Some(length @ 1..=4))
        | (Some(NETWORK), Some(8 | 24), Some(length @ 1..=16)) => {
            Loaded::Address(vec![0xff; length as usize])
        }
        (Some(TRANSPORT), Some(0 | 2), Some(2)) => Loaded::Port,
        _ => Loaded::Other,
    }
}

/// The states of `struct xt_conntrack_mtinfo2` or 3, if nothing else is asked for.
fn xt_state(revision: Option<u32>, info: &[u8]) -> Option<u32> {
    /// Where they have their flags and states: behind eight addresses of 16 bytes, two times of 4, and six
    /// ports or protocols of 2.
    const FLAGS_AT: usize = 8 * 16 + 2 * 4 + 5 * 2;
    const STATE: u16 = 1;
    if !matches!(revision, Some(2 | 3)) {
        return None;
    }
    let half = |at: usize| info.get(at..)?.first_chunk().map(|half| u16::from_ne_bytes(*half));
    let (asked, inverted, states) = (half(FLAGS_AT)?, half(FLAGS_AT + 2)?, half(FLAGS_AT + 4)?);
    // XT_CONNTRACK_STATE_BIT has the kernel's numbers: established is bit 1.
    (asked == STATE && inverted == 0).then_some(u32::from(states))
}

/// Of `NFTA_IMMEDIATE_DATA`, or an element's data.
pub(super) fn effect(data: &[u8]) -> Effect {
    let Some(verdict) = find(data, 2) else { return Effect::Acts };
    let to = || find(verdict, 2).map(text).unwrap_or_default();
    match number(verdict, 1).map(u32::cast_signed) {
        Some(1) => Effect::Accept,
        Some(-1) => Effect::None,
        Some(-3) => Effect::Jump(to()),
        Some(-4) => Effect::Goto(to()),
        Some(-5) => Effect::Return,
        _ => Effect::Acts,
    }
}

/// The attribute of this number.
pub(super) fn find(bytes: &[u8], number: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == number).map(|(_, value)| value)
}

/// An attribute's text, without its end.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// A number of this attribute, in network order.
pub(super) fn number(bytes: &[u8], attribute: u16) -> Option<u32> {
    find(bytes, attribute)?.first_chunk().map(|word| u32::from_be_bytes(*word))
}

/// Of `NFTA_DATA_VALUE` in it.
pub(super) fn value(data: Option<&[u8]>) -> &[u8] {
    data.and_then(|data| find(data, 1)).unwrap_or_default()
}

/// A number as a register has it.
pub(super) fn native(bytes: &[u8]) -> Option<u32> {
    <[u8; 4]>::try_from(bytes).ok().map(u32::from_ne_bytes)
}
