//! Reads which rules, routes and sysctls the kernel has, and who added them.

use super::found::{FoundRoute, FoundRule, Memo, Tag};
use super::item::{IpFamily, LocalRoute, Need, Switch};
use super::message;
use super::netlink::{Netlink, NetlinkError};
use super::sysctl;

/// Everything in the kernel that can matter to a plan.
#[derive(Debug, Default)]
pub struct KernelRoutes {
    /// All rules that lead to a table and that truepeer could have written.
    pub(crate) rules: Vec<FoundRule>,
    /// Local default routes: truepeer's in any table, others' in the requested table.
    pub(crate) routes: Vec<FoundRoute>,
    /// Switches that truepeer changed.
    pub(crate) memos: Vec<Memo>,
}

impl KernelRoutes {
    /// Reads this network namespace; `table` is the one whose foreign routes matter.
    pub fn read(netlink: &mut Netlink, table: u32) -> Result<Self, NetlinkError> {
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
    pub fn satisfied_by(&self, need: &Need) -> Option<Tag> {
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
