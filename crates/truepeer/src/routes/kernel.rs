//! Reads which rules, routes and sysctls the kernel has, and who added them.

use ipnet::IpNet;

use super::item::{IpFamily, LocalRoute, Need, Rule, Switch};
use super::message;
use super::netlink::{Netlink, NetlinkError};
use super::sysctl;

/// Who added a rule or a route, by its protocol number (`proto` in `ip rule`, see rt_protos(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tag {
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
    pub(crate) fn of(protocol: u8) -> Self {
        match protocol {
            Self::OWNED => Self::Owned,
            Self::PINNED => Self::Pinned,
            _ => Self::Foreign,
        }
    }

    /// The number to write; `Foreign` is never written, so it has the kernel's "unspecified".
    pub(crate) fn protocol(self) -> u8 {
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
/// It is a rule that does nothing (`nop`), behind all others: it survives the process, and goes with the network
/// namespace. Its priority spells `0x7b`, the switch and the old value.
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

    /// Reads one back; `None` if the number is none of ours.
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

/// Everything in the kernel that can matter to a plan.
#[derive(Debug, Default)]
pub(crate) struct KernelRoutes {
    /// All rules that lead to a table and that truepeer could have written.
    pub(crate) rules: Vec<FoundRule>,
    /// Local default routes: truepeer's in any table, others' in the requested table.
    pub(crate) routes: Vec<FoundRoute>,
    /// Switches that truepeer changed.
    pub(crate) memos: Vec<Memo>,
}

impl KernelRoutes {
    /// Reads this network namespace; `table` is the one whose foreign routes matter.
    pub(crate) fn read(netlink: &mut Netlink, table: u32) -> Result<Self, NetlinkError> {
        let mut kernel = Self::default();
        for family in IpFamily::ALL {
            kernel.read_rules(netlink, family)?;
            kernel.read_routes(netlink, family, table)?;
        }
        Ok(kernel)
    }

    fn read_rules(&mut self, netlink: &mut Netlink, family: IpFamily) -> Result<(), NetlinkError> {
        for message in netlink.rules(family)? {
            self.memos.extend(message::memo(&message));
            self.rules.extend(message::found_rule(family, &message));
        }
        Ok(())
    }

    fn read_routes(
        &mut self,
        netlink: &mut Netlink,
        family: IpFamily,
        table: u32,
    ) -> Result<(), NetlinkError> {
        for tag in Tag::OURS {
            let found = netlink.routes_by(family, tag.protocol())?;
            let found = found.iter().filter_map(|m| message::found_route(family, m));
            self.routes.extend(found.filter(|r| r.tag == tag));
        }
        let found = netlink.routes_in(family, table)?;
        let found = found.iter().filter_map(|m| message::found_route(family, m));
        self.routes.extend(found.filter(|r| r.tag == Tag::Foreign && r.route.table == table));
        Ok(())
    }

    /// Who has satisfied a need already. If several have: foreign before pinned before owned.
    pub(crate) fn satisfied_by(&self, need: &Need) -> Option<Tag> {
        match need {
            Need::Rule(rule) => self.rules.iter().filter(|f| f.rule.is_same_as(rule)).map(|f| f.tag).max(),
            Need::LocalRoute(route) => {
                self.routes.iter().filter(|f| suffices(&f.route, route)).map(|f| f.tag).max()
            }
            Need::Switch(switch) => (sysctl::read(*switch) == Some(1)).then(|| self.keeper(*switch)),
        }
    }

    fn keeper(&self, switch: Switch) -> Tag {
        self.memos.iter().find(|m| m.switch == switch).map_or(Tag::Foreign, |m| m.tag)
    }

    /// A foreign route in the place of truepeer's that lacks the source address which truepeer's needs.
    pub(crate) fn in_the_way(&self, route: &LocalRoute) -> Option<&FoundRoute> {
        self.routes.iter().find(|f| {
            f.tag == Tag::Foreign
                && f.route.family == route.family
                && f.route.table == route.table
                && !suffices(&f.route, route)
        })
    }
}

/// A route with a source address also serves a need without one. The reverse does not hold.
pub(crate) fn suffices(found: &LocalRoute, wanted: &LocalRoute) -> bool {
    found.family == wanted.family
        && found.table == wanted.table
        && (wanted.source.is_none() || wanted.source == found.source)
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
