//! The chains of nftables: whether a rule in them could do something to a session's later packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use truepeer_sys::notices::attributes;

use super::rule::{ESTABLISHED, Effect, Matches, Rule, effect, find, native, number, text, value};

/// NFT_MSG_*.
const NEW_CHAIN: u8 = 3;
const DELETED_TABLE: u8 = 2;
const DELETED_CHAIN: u8 = 5;
const NEW_RULE: u8 = 6;
const DELETED_RULE: u8 = 8;
const DELETED_SET: u8 = 11;
const NEW_ELEMENTS: u8 = 12;
/// NF_INET_FORWARD: packets of a relay don't pass it.
const FORWARD: u32 = 2;
/// NFPROTO_ARP.
const ARP: u8 = 3;
/// NLM_F_APPEND.
const APPENDED: u16 = 0x800;
/// Chains that jump to chains, beyond what nftables permits.
const DEEPEST: usize = 20;
/// An anonymous set with more elements than there are states is none of states.
const MOST_STATES: usize = 16;

/// The chain, or set, of a table of a family.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) family: u8,
    pub(super) table: String,
    pub(super) name: String,
}

#[derive(Debug, Default)]
struct Chain {
    /// Of a chain that packets come to by a hook that sessions pass: whether its policy drops.
    drops: Option<bool>,
    /// With their handles, in their order.
    rules: Vec<(u64, Rule)>,
}

/// Everything that is known of it.
#[derive(Debug)]
pub(super) struct Ruleset {
    /// Of the packets.
    protocol: u8,
    chains: BTreeMap<Id, Chain>,
    /// The elements of anonymous sets that may be states of connections, with their verdicts.
    states: BTreeMap<Id, Vec<(u32, Effect)>>,
}

/// How packets leave a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// A rule may do something to them.
    Acts,
    Accepted,
    Through,
}

impl Ruleset {
    pub(super) fn of(protocol: u8) -> Self {
        Self { protocol, chains: BTreeMap::new(), states: BTreeMap::new() }
    }

    /// Notes a message: its type, flags and what follows `struct nfgenmsg`. True: it matters.
    pub(super) fn note(&mut self, kind: u8, flags: u16, family: u8, body: &[u8]) -> bool {
        let Some(table) = find(body, 1).map(text) else { return false };
        let id = |name: u16| {
            let name = find(body, name).map(text).unwrap_or_default();
            Id { family, table: table.clone(), name }
        };
        match kind {
            NEW_CHAIN => self.note_chain(id(3), body),
            DELETED_CHAIN => _ = self.chains.remove(&id(3)),
            NEW_RULE => self.note_rule(id(2), flags, body),
            DELETED_RULE => {
                let (chain, handle) = (self.chains.get_mut(&id(2)), handle(body, 3));
                chain.into_iter().for_each(|chain| chain.rules.retain(|(one, _)| Some(*one) != handle));
            }
            NEW_ELEMENTS => return self.note_elements(id(2), body),
            DELETED_SET => _ = self.states.remove(&id(2)),
            DELETED_TABLE => {
                let stays = |id: &Id| id.family != family || id.table != table;
                self.chains.retain(|id, _| stays(id));
                self.states.retain(|id, _| stays(id));
            }
            _ => return false,
        }
        true
    }

    fn note_chain(&mut self, id: Id, body: &[u8]) {
        let hook = find(body, 4).and_then(|hook| number(hook, 1));
        let is_nat = find(body, 7).map(text).as_deref() == Some("nat");
        let is_passed = id.family != ARP && hook.is_some_and(|hook| hook != FORWARD) && !is_nat;
        let drops = is_passed.then(|| number(body, 5) == Some(0));
        self.chains.entry(id).or_default().drops = drops;
    }

    /// A notice has the rule before, unless the rule is the first or the last one.
    fn note_rule(&mut self, id: Id, flags: u16, body: &[u8]) {
        let Some(handle_of_it) = handle(body, 3) else { return };
        let protocol = self.protocol;
        let rules = &mut self.chains.entry(id).or_default().rules;
        rules.retain(|(one, _)| *one != handle_of_it);
        let before = handle(body, 6).and_then(|before| rules.iter().position(|(one, _)| *one == before));
        let at = match before {
            Some(before) => before + 1,
            None if flags & APPENDED != 0 => rules.len(),
            None => 0,
        };
        rules.insert(at, (handle_of_it, Rule::read(find(body, 4).unwrap_or_default(), protocol)));
    }

    fn note_elements(&mut self, id: Id, body: &[u8]) -> bool {
        if !id.name.starts_with("__") {
            return false;
        }
        let known = self.states.entry(id).or_default();
        for (_, element) in attributes(find(body, 3).unwrap_or_default()) {
            let key = native(value(find(element, 1)));
            if let Some(key) = key.filter(|_| known.len() < MOST_STATES) {
                known.push((key, find(element, 2).map_or(Effect::Accept, effect)));
            }
        }
        true
    }

    /// Sets that rules look states up in.
    pub(super) fn wanted_sets(&self) -> BTreeSet<Id> {
        let of = |(id, chain): (&Id, &Chain)| -> Vec<Id> {
            let names = chain.rules.iter().flat_map(|(_, rule)| rule.sets());
            names.map(|name| Id { name: name.clone(), ..id.clone() }).collect()
        };
        self.chains.iter().flat_map(of).collect()
    }

    /// Whether a rule could do something to later packets between these ends. `None`: between any.
    pub(super) fn may_act(&self, ends: Option<&[SocketAddr]>) -> bool {
        self.chains.iter().any(|(id, chain)| match chain.drops {
            None => false,
            Some(drops) => match self.walk(id, chain, ends, 0) {
                Walk::Acts => true,
                Walk::Accepted => false,
                Walk::Through => drops,
            },
        })
    }

    fn walk(&self, id: &Id, chain: &Chain, ends: Option<&[SocketAddr]>, depth: usize) -> Walk {
        let state = |set: &str| {
            let elements = self.states.get(&Id { name: set.to_owned(), ..id.clone() })?;
            Some(elements.iter().find(|(key, _)| *key == ESTABLISHED).map(|(_, effect)| effect.clone()))
        };
        // A rule that may match has let packets return to the chain before.
        let mut may_be_through = false;
        let accepted = |may_be_through| if may_be_through { Walk::Through } else { Walk::Accepted };
        for (_, rule) in &chain.rules {
            let (matches, effect) = rule.matches(ends, state);
            let is_certain = match matches {
                Matches::Never => continue,
                Matches::Perhaps => false,
                Matches::Always => true,
            };
            let (to, is_goto) = match effect {
                Effect::None => continue,
                Effect::Acts => return Walk::Acts,
                Effect::Accept if is_certain => return accepted(may_be_through),
                Effect::Accept => continue,
                Effect::Return if is_certain => return Walk::Through,
                Effect::Return => {
                    may_be_through = true;
                    continue;
                }
                Effect::Jump(to) => (to, false),
                Effect::Goto(to) => (to, true),
            };
            let to = Id { name: to, ..id.clone() };
            let Some(next) = self.chains.get(&to).filter(|_| depth < DEEPEST) else { return Walk::Acts };
            match self.walk(&to, next, ends, depth + 1) {
                Walk::Acts => return Walk::Acts,
                Walk::Accepted if is_certain => return accepted(may_be_through),
                Walk::Through if is_certain && is_goto => return Walk::Through,
                Walk::Through if is_goto => may_be_through = true,
                Walk::Accepted | Walk::Through => {}
            }
        }
        Walk::Through
    }
}

/// A handle in network order.
fn handle(body: &[u8], attribute: u16) -> Option<u64> {
    find(body, attribute)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}
