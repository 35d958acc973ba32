//! The changes that a process makes to the kernel's rules when it starts, while it runs, and at its end. The
//! keeper makes them for a confined process, any other process by itself. Both hold the
//! [`RulesLock`](super::owners::RulesLock) meanwhile.

use super::apply::chain;
use super::apply::{self, ApplyOutcome};
use super::found::Tag;
use super::item::{Item, Need};
use super::netlink::{Netlink, NetlinkError};
use super::owners::Living;
use super::plan::RoutePlan;

/// Adds what is missing of a plan. `sweeps`: first removes what killed processes have left and nobody needs.
pub fn add(plan: &RoutePlan, sweeps: bool) -> Result<ApplyOutcome, NetlinkError> {
    let mut netlink = Netlink::open()?;
    if sweeps {
        sweep_stale(&mut netlink, plan);
    }
    apply::apply(&mut netlink, plan, Tag::Owned)
}

fn sweep_stale(netlink: &mut Netlink, plan: &RoutePlan) {
    let Ok(living) = Living::read() else { return };
    let is_ours = |need: &Need| plan.items.iter().any(|item| means_the_same(&item.need, need));
    let swept = apply::sweep(netlink, &[Tag::Owned], |need| is_ours(need) || living.need(need));
    if let Err(error) = swept {
        tracing::debug!(error = chain(&error), "routes: stale ones are left");
    }
}

/// Removes what no living process needs. Returns how much that was.
pub fn remove_unused() -> Result<usize, NetlinkError> {
    let Ok(living) = Living::read() else { return Ok(0) };
    let mut netlink = Netlink::open()?;
    let removed = apply::sweep(&mut netlink, &[Tag::Owned], |need| living.need(need))?;
    give_back(&mut netlink, &removed)?;
    Ok(removed.len())
}

/// Adds again what another process has begun to need since it was found unused. This happens only without the
/// lock, which another user may hold. The other process is counted before it looks for what is missing:
/// either it is seen here, or it finds the item removed and adds it itself.
fn give_back(netlink: &mut Netlink, removed: &[Need]) -> Result<(), NetlinkError> {
    let Ok(living) = Living::read() else { return Ok(()) };
    let again = removed.iter().filter(|need| living.need(need)).cloned();
    let items: Vec<Item> = again.map(|need| Item { need, why: "another truepeer needs it" }).collect();
    if !items.is_empty() {
        apply::apply(netlink, &RoutePlan { items, upstream_mark: None }, Tag::Owned)?;
    }
    Ok(())
}

/// Two rules are the same if they select the same packets. A route serves even if its source address differs.
fn means_the_same(wanted: &Need, found: &Need) -> bool {
    match (wanted, found) {
        (Need::Rule(a), Need::Rule(b)) => a.is_same_as(b),
        (Need::LocalRoute(a), Need::LocalRoute(b)) => a.family == b.family && a.table == b.table,
        (wanted, found) => wanted == found,
    }
}
