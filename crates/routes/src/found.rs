//! Rules, routes and memos as the kernel has them, and who added them.

use ipnet::IpNet;

use super::item::{LocalRoute, Rule, Switch};

/// Who added a rule or a route, by its protocol number (`proto` in `ip rule`, see rt_protos(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// Added by a running truepeer. The last one that needs it removes it.
    Owned,
    /// Added by `truepeer routes apply`. Stays until `truepeer routes remove`.
    Pinned,
    /// Added by the operator or another program. Used if it fits, never removed.
    Foreign,
}

impl Tag {
    /// Protocol 123: 0x7b, free in the kernel's list and in iproute2's.
    const OWNED: u8 = 123;
    /// Protocol 124.
    const PINNED: u8 = 124;

    /// The tags of what truepeer adds.
    pub(crate) const OURS: [Self; 2] = [Self::Owned, Self::Pinned];

    /// Reads a protocol number.
    pub fn of(protocol: u8) -> Self {
        match protocol {
            Self::OWNED => Self::Owned,
            Self::PINNED => Self::Pinned,
            _ => Self::Foreign,
        }
    }

    /// The number to write; `Foreign` is never written, so it has the kernel's "unspecified".
    pub fn protocol(self) -> u8 {
        match self {
            Self::Owned => Self::OWNED,
            Self::Pinned => Self::PINNED,
            Self::Foreign => 0,
        }
    }
}

/// A rule as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRule {
    /// Its meaning.
    pub(crate) rule: Rule,
    /// Its place in the list; smaller is asked earlier.
    pub(crate) priority: u32,
    /// Whose it is.
    pub(crate) tag: Tag,
}

/// A local default route as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRoute {
    /// Its meaning.
    pub(crate) route: LocalRoute,
    /// IPv4: 0, IPv6: 1024 unless the operator chose otherwise.
    pub(crate) metric: Option<u32>,
    /// Whose it is.
    pub(crate) tag: Tag,
}

/// A note that truepeer changed a switch, with the old value.
///
/// It is a rule that does nothing (`nop`), behind all others: it survives the process, and goes with the
/// network namespace. Its priority spells `0x7b`, the switch and the old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memo {
    /// What was changed.
    pub(crate) switch: Switch,
    /// What it was.
    pub(crate) before: u16,
    /// Who changed it.
    pub(crate) tag: Tag,
}

impl Memo {
    /// The priority that spells the memo.
    pub(crate) fn priority(self) -> u32 {
        let position = Switch::ALL.iter().position(|s| *s == self.switch).unwrap_or(0xff);
        0x7b00_0000 | (u32::try_from(position).unwrap_or(0xff) << 16) | u32::from(self.before)
    }

    /// Reads one back. `None`: truepeer has not written this priority.
    pub(crate) fn of(priority: u32, tag: Tag) -> Option<Self> {
        let [magic, position, high, low] = priority.to_be_bytes();
        let switch = *Switch::ALL.get(usize::from(position))?;
        (magic == 0x7b && tag != Tag::Foreign).then_some(Self {
            switch,
            before: u16::from_be_bytes([high, low]),
            tag,
        })
    }
}

/// A prefix that selects everything: some programs write it instead of no selector.
pub(crate) fn is_everything(net: &IpNet) -> bool {
    net.prefix_len() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_survives_the_way_through_a_priority() {
        for switch in Switch::ALL {
            let memo = Memo { switch, before: 513, tag: Tag::Pinned };
            assert_eq!(Memo::of(memo.priority(), Tag::Pinned), Some(memo));
        }
    }

    #[test]
    fn a_foreign_rule_is_never_a_memo() {
        assert_eq!(Memo::of(0x7b00_0000, Tag::Foreign), None);
        assert_eq!(Memo::of(0x7bff_0000, Tag::Owned), None);
        assert_eq!(Memo::of(32766, Tag::Owned), None);
    }
}
