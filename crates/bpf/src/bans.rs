//! Who is banned from the ports of a network namespace (`c/attach/bans.h`). The tables are pinned like the
//! others: bans end by themselves, and need no process.

mod tables;

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use truepeer_policy::{Ban, BannedPrefix, Lifted};
use truepeer_sys::CallError;
use truepeer_sys::sock_diag::SockDiag;

use self::tables::{BanPrefix, BanTables, is_host, is_in_force};
use crate::connections::NAMES_A_CLIENT;
use crate::cut;
use crate::error::AttachError;
use crate::layout::{FlowKey, RawBan, RawFlow};
use crate::place::Place;
use crate::tables::Tables;
use crate::trie;

/// `by` of nobody.
const NOBODY: u32 = u32::MAX;
/// A connection may become one that is known while the others are ended.
const ROUNDS: usize = 3;
/// The pause between rounds.
const PAUSE: Duration = Duration::from_millis(20);

/// The bans of one network namespace.
pub struct BanTable {
    place: Place,
    bans: BanTables,
}

impl BanTable {
    /// `None`: nothing is attached there.
    ///
    /// # Errors
    /// The tables can't be opened.
    pub fn open(place: &Place) -> Result<Option<Self>, AttachError> {
        Ok(BanTables::open(place)?.map(|bans| Self { place: place.clone(), bans }))
    }

    /// The inode of the network namespace.
    ///
    /// # Errors
    /// The settings can't be read.
    pub fn netns(&self) -> Result<u64, AttachError> {
        Tables::open(&self.place)?.netns()
    }

    /// Sets bans, but for those that one [outlasts](Ban::outlasts). `now`: in seconds since 1970. New
    /// connections are refused at once; [`Self::cut`] ends those that are open.
    ///
    /// # Errors
    /// The tables are full: some are set.
    pub fn set(&mut self, bans: &[Ban], now: u64) -> Result<usize, AttachError> {
        let _lock = self.place.lock()?;
        let (mut tables, boot) = (Tables::open(&self.place)?, since_boot());
        self.bans.kinds = tables.bans()?;
        let set = self.put_all(bans, now, boot);
        tables.set_bans(self.bans.kinds)?;
        set
    }

    fn put_all(&mut self, bans: &[Ban], now: u64, boot: Duration) -> Result<usize, AttachError> {
        // A clock may be behind at boot. Even then, no ban is longer than it was set.
        let ends = |ban: &Ban| {
            let left = |until: u64| Duration::from_secs(until.saturating_sub(now.max(ban.since)));
            ban.until.map_or(0, |until| nanos(boot.saturating_add(left(until))).max(1))
        };
        let prefixes = bans.iter().map(|ban| prefix_of(ban.clients, ban.port));
        let mut known = self.bans.those(prefixes)?;
        let (mut has_prefixes, mut put, mut set) = (false, Ok(()), 0);
        for ban in bans {
            let prefix = prefix_of(ban.clients, ban.port);
            let raw = RawBan {
                until_ns: ends(ban),
                own_until_ns: ends(ban),
                since_s: u32::try_from(ban.since).unwrap_or(u32::MAX),
                by: ban.by.unwrap_or(NOBODY),
                why: cut_off(&ban.why),
            };
            if known.get(&prefix).is_some_and(|known| outlasts(known, &raw)) {
                continue;
            }
            has_prefixes |= !is_host(&prefix.1);
            put = self.bans.put(&prefix, raw).or_else(|_| {
                self.bans.sweep(boot)?;
                self.bans.put(&prefix, raw)
            });
            if put.is_err() {
                break;
            }
            known.insert(prefix, raw);
            set += 1;
        }
        // Also of those that are set before a failure: without it, a shorter ban inside one of them ends it.
        let levelled = if has_prefixes { self.bans.level() } else { Ok(()) };
        put.and(levelled).map(|()| set)
    }

    /// Lifts the bans of exactly these prefixes. Returns how many there were.
    ///
    /// # Errors
    /// The tables can't be changed.
    pub fn lift(&mut self, clients: &[BannedPrefix], which: Lifted<'_>) -> Result<usize, AttachError> {
        let mut wanted: BTreeSet<BanPrefix> =
            clients.iter().map(|clients| prefix_of(*clients, which.port)).collect();
        self.remove_those(|bans| {
            if which.port.is_none() && bans.has_at_port() {
                let everywhere = |(_, net): &BanPrefix| wanted.contains(&([0; 2], *net));
                let at_ports: Vec<BanPrefix> = bans.all()?.into_keys().filter(everywhere).collect();
                wanted.extend(at_ports);
            }
            if let Some(why) = which.why {
                let (known, why) = (bans.those(wanted.iter().copied())?, cut_off(why));
                wanted.retain(|prefix| known.get(prefix).is_some_and(|ban| ban.why == why));
            }
            Ok(wanted)
        })
    }

    /// Lifts all. Returns how many there were.
    ///
    /// # Errors
    /// The tables can't be changed.
    pub fn clear(&mut self) -> Result<usize, AttachError> {
        self.remove_those(|bans| Ok(bans.all()?.into_keys().collect()))
    }

    fn remove_those(
        &mut self,
        find: impl FnOnce(&BanTables) -> Result<BTreeSet<BanPrefix>, AttachError>,
    ) -> Result<usize, AttachError> {
        let _lock = self.place.lock()?;
        let mut tables = Tables::open(&self.place)?;
        self.bans.kinds = tables.bans()?;
        let those = find(&self.bans)?;
        let mut removed = 0;
        for prefix in &those {
            removed += usize::from(self.bans.remove(prefix)?);
        }
        if those.iter().any(|(_, net)| !is_host(net)) {
            self.bans.level()?;
        }
        self.bans.look_again(removed)?;
        tables.set_bans(self.bans.kinds)?;
        Ok(removed)
    }

    /// Those that have not ended, in order. `now`: in seconds since 1970.
    ///
    /// # Errors
    /// The tables can't be read.
    pub fn list(&self, now: u64) -> Result<Vec<Ban>, AttachError> {
        let boot = since_boot();
        let listed = self.bans.all()?.into_iter().filter(|(_, raw)| is_in_force(raw.own_until_ns, boot));
        let ban = |((port, net), raw): (BanPrefix, RawBan)| {
            let left = Duration::from_nanos(raw.own_until_ns).saturating_sub(boot);
            Some(Ban {
                clients: trie::to_net(net).to_string().parse().ok()?,
                port: NonZeroU16::new(u16::from_be_bytes(port)),
                since: raw.since_s.into(),
                until: (raw.own_until_ns != 0)
                    .then(|| now + left.as_secs() + u64::from(left.subsec_nanos() > 0)),
                by: (raw.by != NOBODY).then_some(raw.by),
                why: text_of(&raw.why).into(),
            })
        };
        Ok(listed.filter_map(ban).collect())
    }

    /// Ends the open connections and UDP flows of those who are banned now. The calling thread must be in the
    /// network namespace. Returns how many there were.
    ///
    /// # Errors
    /// The kernel can't end them.
    pub fn cut(&self) -> Result<usize, AttachError> {
        let (mut tables, boot) = (Tables::open(&self.place)?, since_boot());
        let (mut ended, mut refused) = (self.forget_flows(&mut tables, boot)?, None);
        for round in 0..ROUNDS {
            if round > 0 {
                std::thread::sleep(PAUSE);
            }
            refused = None;
            let mut keys = Vec::new();
            for (key, flow) in tables.flows().into_iter().chain(tables.established()) {
                if self.is_banned(&tables, &key, &flow, boot)? {
                    keys.push(key);
                }
            }
            if keys.is_empty() {
                continue;
            }
            keys.sort_unstable();
            let count = keys.len();
            let failed = move |error: CallError| AttachError::Uncut {
                count,
                what: "SOCK_DESTROY",
                source: error.errno.into(),
            };
            let mut kernel = SockDiag::open().map_err(failed)?;
            for socket in kernel.connections().map_err(failed)? {
                if keys.binary_search(&cut::key(&socket)).is_err() {
                    continue;
                }
                // Older kernels can't end a connection that its owner is just closing: end the others.
                match kernel.destroy(&socket) {
                    Ok(()) => ended += 1,
                    Err(error) => refused = Some(failed(error)),
                }
            }
        }
        refused.map_or(Ok(ended), Err)
    }

    /// The answers to clients who are banned end; their datagrams are refused already.
    fn forget_flows(&self, tables: &mut Tables, boot: Duration) -> Result<usize, AttachError> {
        let mut keys = Vec::new();
        for (key, flow) in tables.udp_flows() {
            if key.client != flow.sender && self.bans.is_banned(key.client, flow.port, boot)? {
                keys.push(key);
            }
        }
        tables.forget_these_udp_flows(&keys)?;
        Ok(keys.len())
    }

    fn is_banned(
        &self,
        tables: &Tables,
        key: &FlowKey,
        flow: &RawFlow,
        boot: Duration,
    ) -> Result<bool, AttachError> {
        if flow.header == NAMES_A_CLIENT {
            return Ok(flow.client != key.remote && self.bans.is_banned(flow.client, key.local_port, boot)?);
        }
        // The sender speaks for itself. Where a header is required it did so by one: then it is not banned.
        Ok(self.bans.is_banned(key.remote, key.local_port, boot)?
            && !tables.requires_header(key.remote, key.local_port)?)
    }
}

fn prefix_of(clients: BannedPrefix, port: Option<NonZeroU16>) -> BanPrefix {
    (port.map_or([0; 2], |port| port.get().to_be_bytes()), trie::to_ipv6(clients.net()))
}

/// The clock of bpf_ktime_get_boot_ns().
fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// As [`Ban::outlasts`].
fn outlasts(known: &RawBan, new: &RawBan) -> bool {
    let is_later = known.own_until_ns == 0 || known.own_until_ns > new.own_until_ns;
    known.why != new.why && new.own_until_ns != 0 && is_later
}

/// As much of a reason as there is room for, in whole characters.
fn cut_off(why: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    let len = why.floor_char_boundary(bytes.len());
    bytes[..len].copy_from_slice(&why.as_bytes()[..len]);
    bytes
}

fn text_of(why: &[u8; 32]) -> String {
    let len = why.iter().position(|byte| *byte == 0).unwrap_or(why.len());
    String::from_utf8_lossy(&why[..len]).into_owned()
}
