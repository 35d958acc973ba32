//! The lists of several attachments in one table. Of each value, two bits belong to each attachment, its
//! *group*: one lookup serves all, and costs what it would cost with one list.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv6Net;

use crate::trie::{Entry, NOTHING};

/// `MAX_GROUPS`.
pub(crate) const MAX_GROUPS: u8 = 16;

/// A table of prefixes. It is in the order of its networks, wider ones first, so a prefix follows those
/// around it.
pub(crate) type List = BTreeMap<Ipv6Net, u32>;

/// The table with this list for this group, whose values have two bits. Entries that say the same as the one
/// around them are left out.
pub(crate) fn with(table: &List, group: u8, own: &[Entry]) -> List {
    let shift = u32::from(group) * 2;
    let own: List = own.iter().copied().collect();
    let prefixes: BTreeSet<Ipv6Net> = table.keys().chain(own.keys()).copied().collect();
    let mut around: Vec<(Ipv6Net, [u32; 3])> = Vec::new();
    let mut made = List::new();
    for prefix in prefixes {
        while around.last().is_some_and(|(wider, _)| !wider.contains(&prefix)) {
            around.pop();
        }
        let [old, mine, kept] = around.last().map_or([NOTHING; 3], |(_, values)| *values);
        let old = table.get(&prefix).copied().unwrap_or(old);
        let mine = own.get(&prefix).copied().unwrap_or(mine);
        let value = old & !(3 << shift) | mine << shift;
        if value != kept {
            made.insert(prefix, value);
        }
        around.push((prefix, [old, mine, value]));
    }
    made
}

/// The list of one group, without entries that say the same as the one around them.
pub(crate) fn of(table: &List, group: u8) -> Vec<Entry> {
    let own = table.iter().map(|(prefix, value)| (*prefix, value >> (u32::from(group) * 2) & 3));
    with(&List::new(), 0, &own.collect::<Vec<_>>()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Near each other, so that many are nested.
    fn prefix() -> impl Strategy<Value = Ipv6Net> {
        (0..4_u128, 0..4_u128, 0_u8..=12).prop_map(|(high, low, len)| {
            let ip = std::net::Ipv6Addr::from_bits(high << 120 | low << 116);
            Ipv6Net::new_assert(ip, len).trunc()
        })
    }

    fn lists() -> impl Strategy<Value = Vec<(u8, Vec<Entry>)>> {
        let list = prop::collection::btree_map(prefix(), 0..4_u32, 0..8);
        let list = list.prop_map(|list| list.into_iter().collect());
        prop::collection::vec((0..MAX_GROUPS, list), 0..6)
    }

    fn look_up(entries: impl Iterator<Item = Entry>, ip: Ipv6Net) -> u32 {
        let found = entries.filter(|(net, _)| net.contains(&ip)).max_by_key(|(net, _)| net.prefix_len());
        found.map_or(NOTHING, |(_, value)| value)
    }

    proptest! {
        /// The newest list of a group counts; the others see no difference.
        #[test]
        fn each_group_finds_its_own_list(lists in lists()) {
            let mut table = List::new();
            for (group, list) in &lists {
                table = with(&table, *group, list);
            }
            for high in 0..=255_u128 {
                let ip = Ipv6Net::new_assert(std::net::Ipv6Addr::from_bits(high << 116), 128);
                let values = look_up(table.iter().map(|(net, value)| (*net, *value)), ip);
                for group in 0..MAX_GROUPS {
                    let newest = lists.iter().rfind(|(of, _)| *of == group);
                    let expected = newest.map_or(NOTHING, |(_, list)| look_up(list.iter().copied(), ip));
                    prop_assert_eq!(values >> (group * 2) & 3, expected, "{} of {}", group, ip);
                    let own = look_up(of(&table, group).into_iter(), ip);
                    prop_assert_eq!(own, expected, "{} of {}", group, ip);
                }
            }
        }

        #[test]
        fn a_group_leaves_nothing_behind(lists in lists()) {
            let mut table = List::new();
            for (group, list) in &lists {
                table = with(&table, *group, list);
            }
            for (group, _) in &lists {
                table = with(&table, *group, &[]);
            }
            prop_assert!(table.is_empty());
        }
    }
}
