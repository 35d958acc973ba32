//! The secrets that headers must have, by attachment and sender (`c/attach/proof.h`).

use std::collections::BTreeSet;

use aya::Pod;
#[cfg(test_programs)]
use aya::maps::Map;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{MapData, MapError};
use ipnet::{IpNet, Ipv6Net};
use truepeer_policy::{MOST_SECRETS, SECRET_LEN};

use crate::error::AttachError;
use crate::layout::{Address, BanKey};
use crate::rules::RequiredSecret;
use crate::trie;

const NAME: &str = "tp_proofs";
/// The bits of a key before the address.
const BITS_OF_GROUP: u32 = 32;

pub(super) type Proofs = LpmTrie<MapData, BanKey, RawProof>;

/// `struct secret`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawSecret {
    len: u64,
    bytes: [u8; *SECRET_LEN.end()],
}

/// `struct proof`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawProof {
    kind: u64,
    secrets: [RawSecret; MOST_SECRETS],
}

const _: () = assert!(size_of::<RawProof>() == 8 + 72 * MOST_SECRETS);

// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for RawProof {}

impl RawProof {
    /// `None`: nothing is demanded.
    fn of(required: Option<&RequiredSecret>) -> Self {
        let mut secrets = [RawSecret { len: 0, bytes: [0; _] }; MOST_SECRETS];
        for (raw, secret) in secrets.iter_mut().zip(required.iter().flat_map(|one| one.secrets.iter())) {
            // Policy's secrets are no longer.
            let len = secret.len().min(raw.bytes.len());
            raw.bytes[..len].copy_from_slice(&secret[..len]);
            raw.len = u64::try_from(len).unwrap_or_default();
        }
        Self { kind: required.map_or(0, |one| one.kind.into()), secrets }
    }
}

/// Writes those of one attachment, which may be none.
pub(super) fn write(table: &mut Proofs, group: u8, required: &[RequiredSecret]) -> Result<(), AttachError> {
    let prefixes = required.iter().enumerate().flat_map(|(index, one)| {
        // Above 0, which stands for nothing.
        let number = u32::try_from(index + 1).unwrap_or_default();
        one.senders.iter().map(move |net| (net, number))
    });
    let mut wanted = BTreeSet::new();
    for (prefix, number) in trie::of_prefixes(prefixes) {
        let one = usize::try_from(number).ok().and_then(|number| required.get(number.checked_sub(1)?));
        table
            .insert(&key_of(group, prefix), RawProof::of(one), 0)
            .map_err(AttachError::map("writing", NAME))?;
        wanted.insert(prefix);
    }
    for (prefix, _) in of_group(table, group)?.into_iter().filter(|(prefix, _)| !wanted.contains(prefix)) {
        table.remove(&key_of(group, prefix)).map_err(AttachError::map("removing from", NAME))?;
    }
    Ok(())
}

/// For tests: the only one of a table of a program's own.
#[cfg(test_programs)]
pub(crate) fn write_for_all(table: &mut Map, required: &RequiredSecret) -> Result<(), AttachError> {
    let mut table: LpmTrie<&mut MapData, BanKey, RawProof> =
        table.try_into().map_err(AttachError::map("opening", NAME))?;
    table
        .insert(&key_of(0, Ipv6Net::default()), RawProof::of(Some(required)), 0)
        .map_err(AttachError::map("writing", NAME))
}

/// The type of the TLV that each prefix of an attachment's senders must send.
pub(super) fn kinds(table: &Proofs, group: u8) -> Result<Vec<(IpNet, u8)>, AttachError> {
    let of_group = of_group(table, group)?.into_iter();
    let kinds =
        of_group.filter_map(|(prefix, raw)| Some((trie::to_net(prefix), u8::try_from(raw.kind).ok()?)));
    Ok(kinds.filter(|(_, kind)| *kind != 0).collect())
}

fn of_group(table: &Proofs, group: u8) -> Result<Vec<(Ipv6Net, RawProof)>, AttachError> {
    let found: Result<Vec<_>, MapError> = table.iter().collect();
    let found = found.map_err(AttachError::map("reading", NAME))?;
    let of_group = found.into_iter().filter(|(key, _)| key.data().port == port_of(group));
    let prefix = |key: Key<BanKey>| {
        let len = u8::try_from(key.prefix_len().saturating_sub(BITS_OF_GROUP)).unwrap_or(128);
        Ipv6Net::new_assert(key.data().client.0.into(), len.min(128))
    };
    Ok(of_group.map(|(key, raw)| (prefix(key), raw)).collect())
}

/// A group stands where a ban has its port.
fn port_of(group: u8) -> [u8; 2] {
    u16::from(group).to_ne_bytes()
}

fn key_of(group: u8, prefix: Ipv6Net) -> Key<BanKey> {
    let client = Address(prefix.network().octets());
    let bits = BITS_OF_GROUP + u32::from(prefix.prefix_len());
    Key::new(bits, BanKey { port: port_of(group), zero: [0; 2], client })
}
