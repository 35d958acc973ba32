//! The tables of bans: single addresses, a filter before them, and prefixes (`c/attach/bans.h`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, Map, MapData, MapError};
use ipnet::Ipv6Net;
use truepeer_policy::without_nat64;

use super::nanos;
use crate::error::{AttachError, was_there};
use crate::layout::{Address, BanKey, RawBan};
use crate::place::Place;

const HOSTS: &str = "tp_banned";
const PREFIXES: &str = "tp_bans";
const BLOCKS: &str = "tp_ban_blocks";
/// The length of that.
const BAN_BLOCKS: u32 = 2048;
const BAN_BITS: usize = 3;
/// `enum bans`.
const BANNED_HOSTS: u32 = 1;
/// `enum bans`.
const BANNED_PREFIXES: u32 = 2;
/// `BANS_AT_PORT`.
const AT_PORT: u32 = 2;
/// The bits of a key before the address.
const BITS_OF_PORT: u8 = 32;
/// The bits of a single address.
const HOST: u8 = 128;
/// Removals that are worth writing the blocks anew.
const MANY: usize = 1000;

/// A port in network byte order (0: every port) and a prefix. Wider prefixes come before those in them.
pub(super) type BanPrefix = ([u8; 2], Ipv6Net);

type Trie = LpmTrie<MapData, BanKey, RawBan>;

/// `struct ban_block`.
type Block = [u64; 8];

pub(super) struct BanTables {
    hosts: Trie,
    prefixes: Trie,
    blocks: Array<MapData, Block>,
    /// `enum bans`: what there may be.
    pub(super) kinds: u32,
}

impl BanTables {
    /// `None`: nothing is attached there.
    pub(super) fn open(place: &Place) -> Result<Option<Self>, AttachError> {
        for name in [HOSTS, PREFIXES, BLOCKS] {
            let pin = place.maps().join(name);
            if !pin.try_exists().map_err(AttachError::file("stat", &pin))? {
                return Ok(None);
            }
        }
        let map =
            |name| MapData::from_pin(place.maps().join(name)).map_err(AttachError::map("opening", name));
        let trie = |name| -> Result<Trie, AttachError> {
            Map::LpmTrie(map(name)?).try_into().map_err(AttachError::map("opening", name))
        };
        let blocks = Map::Array(map(BLOCKS)?).try_into().map_err(AttachError::map("opening", BLOCKS))?;
        Ok(Some(Self { hosts: trie(HOSTS)?, prefixes: trie(PREFIXES)?, blocks, kinds: 0 }))
    }

    /// `raw.until_ns` of a prefix becomes the latest end of those around it, too.
    pub(super) fn put(&mut self, prefix: &BanPrefix, raw: RawBan) -> Result<(), AttachError> {
        if is_host(&prefix.1) {
            insert(&mut self.hosts, HOSTS, prefix, raw)?;
            self.kinds |= kind(BANNED_HOSTS, prefix);
            return self.add_to_block(&key_of(prefix));
        }
        let around = self.around(prefix)?;
        let until_ns = around.map_or(raw.until_ns, |around| later(around, raw.until_ns));
        insert(&mut self.prefixes, PREFIXES, prefix, RawBan { until_ns, ..raw })?;
        self.kinds |= kind(BANNED_PREFIXES, prefix);
        Ok(())
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, prefix: &BanPrefix) -> Result<bool, AttachError> {
        let (trie, name) =
            if is_host(&prefix.1) { (&mut self.hosts, HOSTS) } else { (&mut self.prefixes, PREFIXES) };
        was_there(trie.remove(&trie_key(prefix))).map_err(AttachError::map("removing from", name))
    }

    /// After this many removals: what there may still be.
    pub(super) fn look_again(&mut self, removed: usize) -> Result<(), AttachError> {
        let (no_host, no_prefix) =
            (self.hosts.keys().next().is_none(), self.prefixes.keys().next().is_none());
        if self.has(BANNED_HOSTS) && (no_host || removed > MANY) {
            self.write_blocks()?;
        }
        for (kind, is_empty) in [(BANNED_HOSTS, no_host), (BANNED_PREFIXES, no_prefix)] {
            if is_empty {
                self.kinds &= !(kind | kind << AT_PORT);
            }
        }
        Ok(())
    }

    fn add_to_block(&mut self, key: &BanKey) -> Result<(), AttachError> {
        let (at, bits) = place_of(key);
        let before = self.blocks.get(&at, 0).map_err(AttachError::map("reading", BLOCKS))?;
        let block = with(before, bits);
        if block == before {
            return Ok(());
        }
        self.blocks.set(at, block, 0).map_err(AttachError::map("writing", BLOCKS))
    }

    /// With the bits of those alone that are there.
    fn write_blocks(&mut self) -> Result<(), AttachError> {
        let mut blocks = BTreeMap::<u32, Block>::new();
        for prefix in entries(&self.hosts, HOSTS)?.keys() {
            let (at, bits) = place_of(&key_of(prefix));
            let block = blocks.entry(at).or_default();
            *block = with(*block, bits);
        }
        (0..BAN_BLOCKS).try_for_each(|at| {
            let block = blocks.get(&at).copied().unwrap_or_default();
            self.blocks.set(at, block, 0).map_err(AttachError::map("writing", BLOCKS))
        })
    }

    /// Whether there may be bans for one port.
    pub(super) fn has_at_port(&self) -> bool {
        self.kinds >> AT_PORT != 0
    }

    fn has(&self, kind: u32) -> bool {
        self.kinds & (kind | kind << AT_PORT) != 0
    }

    /// As the programs look it up.
    pub(super) fn is_banned(
        &self,
        client: Address,
        port: [u8; 2],
        boot: Duration,
    ) -> Result<bool, AttachError> {
        let client = match without_nat64(Ipv6Addr::from(client.0).into()) {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        for port in [[0; 2], port] {
            let prefix = (port, Ipv6Net::new_assert(client, HOST));
            let host = find(&self.hosts, HOSTS, &prefix, HOST)?;
            let around = find(&self.prefixes, PREFIXES, &prefix, HOST)?;
            if host.into_iter().chain(around).any(|raw| is_in_force(raw.until_ns, boot)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The end of what is around a prefix; `None`: nothing is.
    fn around(&self, prefix: &BanPrefix) -> Result<Option<u64>, AttachError> {
        let Some(wider) = prefix.1.prefix_len().checked_sub(1) else { return Ok(None) };
        Ok(find(&self.prefixes, PREFIXES, prefix, wider)?.map(|raw| raw.until_ns))
    }

    /// Gives each prefix the latest end of those around it: the programs find the longest one alone, which
    /// may end before a wider one.
    pub(super) fn level(&mut self) -> Result<(), AttachError> {
        let mut around: Vec<(BanPrefix, u64)> = Vec::new();
        for (prefix, raw) in entries(&self.prefixes, PREFIXES)? {
            while around
                .last()
                .is_some_and(|((port, wider), _)| *port != prefix.0 || !wider.contains(&prefix.1))
            {
                around.pop();
            }
            let until_ns =
                around.last().map_or(raw.own_until_ns, |(_, until)| later(*until, raw.own_until_ns));
            if until_ns != raw.until_ns {
                insert(&mut self.prefixes, PREFIXES, &prefix, RawBan { until_ns, ..raw })?;
            }
            around.push((prefix, until_ns));
        }
        Ok(())
    }

    /// Removes what has ended.
    pub(super) fn sweep(&mut self, boot: Duration) -> Result<(), AttachError> {
        for (prefix, raw) in self.all()? {
            if !is_in_force(raw.own_until_ns, boot) {
                self.remove(&prefix)?;
            }
        }
        self.level()
    }

    /// The bans of exactly these prefixes.
    pub(super) fn those(
        &self,
        prefixes: impl Iterator<Item = BanPrefix>,
    ) -> Result<BTreeMap<BanPrefix, RawBan>, AttachError> {
        let (mut known, mut all) = (BTreeMap::new(), None);
        for prefix in prefixes {
            let found = if is_host(&prefix.1) {
                find(&self.hosts, HOSTS, &prefix, HOST)?
            } else {
                // A look-up would find a wider one as well.
                if all.is_none() {
                    all = Some(entries(&self.prefixes, PREFIXES)?);
                }
                all.as_ref().and_then(|all| all.get(&prefix)).copied()
            };
            known.extend(found.map(|ban| (prefix, ban)));
        }
        Ok(known)
    }

    /// All bans, in order.
    pub(super) fn all(&self) -> Result<BTreeMap<BanPrefix, RawBan>, AttachError> {
        let mut all = entries(&self.prefixes, PREFIXES)?;
        all.extend(entries(&self.hosts, HOSTS)?);
        Ok(all)
    }
}

pub(super) fn is_host(net: &Ipv6Net) -> bool {
    net.prefix_len() == HOST
}

/// `until_ns`: since the boot; 0: for ever.
pub(super) fn is_in_force(until_ns: u64, boot: Duration) -> bool {
    until_ns == 0 || until_ns > nanos(boot)
}

fn insert(trie: &mut Trie, name: &'static str, prefix: &BanPrefix, raw: RawBan) -> Result<(), AttachError> {
    trie.insert(&trie_key(prefix), raw, 0).map_err(AttachError::map("writing", name))
}

/// The longest prefix around this address that has at most this many bits.
fn find(trie: &Trie, name: &'static str, prefix: &BanPrefix, len: u8) -> Result<Option<RawBan>, AttachError> {
    match trie.get(&Key::new(u32::from(BITS_OF_PORT + len), key_of(prefix)), 0) {
        Ok(raw) => Ok(Some(raw)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(AttachError::map("reading", name)(error)),
    }
}

fn entries(trie: &Trie, name: &'static str) -> Result<BTreeMap<BanPrefix, RawBan>, AttachError> {
    let prefix = |key: Key<BanKey>| {
        let len = u8::try_from(key.prefix_len().saturating_sub(BITS_OF_PORT.into())).unwrap_or(HOST);
        let data = key.data();
        (data.port, Ipv6Net::new_assert(data.client.0.into(), len.min(HOST)))
    };
    let found: Result<_, MapError> =
        trie.iter().map(|entry| entry.map(|(key, raw)| (prefix(key), raw))).collect();
    found.map_err(AttachError::map("reading", name))
}

fn kind(kind: u32, (port, _): &BanPrefix) -> u32 {
    if *port == [0; 2] { kind } else { kind << AT_PORT }
}

fn key_of((port, net): &BanPrefix) -> BanKey {
    BanKey { port: *port, zero: [0; 2], client: Address(net.network().octets()) }
}

fn trie_key(prefix: &BanPrefix) -> Key<BanKey> {
    Key::new(u32::from(BITS_OF_PORT) + u32::from(prefix.1.prefix_len()), key_of(prefix))
}

/// A key's block, and its bits there: `hash_of` in `c/attach/bans.h`.
fn place_of(key: &BanKey) -> (u32, [u64; BAN_BITS]) {
    let mut hash = u64::from(u16::from_ne_bytes(key.port));
    let (words, _) = key.client.0.as_chunks::<4>();
    for word in words {
        hash = (hash ^ u64::from(u32::from_ne_bytes(*word))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    let block = u32::try_from(hash % u64::from(BAN_BLOCKS)).unwrap_or_default();
    (block, [11, 20, 29].map(|from| hash >> from & 511))
}

fn with(mut block: Block, bits: [u64; BAN_BITS]) -> Block {
    for bit in bits {
        // Below 512, so both are in the block.
        block[usize::try_from(bit / 64).unwrap_or_default()] |= 1 << (bit % 64);
    }
    block
}

/// Of two ends, of which 0 is none.
fn later(one: u64, other: u64) -> u64 {
    if one == 0 || other == 0 { 0 } else { one.max(other) }
}
