//! Adds what a plan needs to the kernel, and removes what truepeer added.
//!
//! What exists already is not added again, whoever added it. What other programs added is never removed.

use std::error::Error;
use std::io;

use super::found::{FoundRoute, FoundRule, Memo, Tag};
use super::item::{Item, LocalRoute, Need, Rule, Switch, TABLE_MAIN};
use super::kernel::KernelRoutes;
use super::message;
use super::netlink::{Netlink, NetlinkError};
use super::plan::RoutePlan;
use super::sysctl;

/// Why an item could not be added.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// `/proc/sys` refused.
    #[error("sysctl: writing {name} failed")]
    Sysctl {
        /// Which.
        name: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// Another program's route stands where truepeer's must be.
    #[error(
        "table {table} holds a default route that is not truepeer's and lacks `src {wanted}`: choose another --table"
    )]
    InTheWay {
        /// The contested table.
        table: u32,
        /// The source that unbound UDP backends need.
        wanted: String,
    },
    /// The keeper's failure, with its causes in words.
    #[error("{words}")]
    Told {
        /// The failure.
        words: String,
        /// The kernel's error.
        answer: io::Error,
    },
}

impl RoutesError {
    /// The kernel's error, if it refused.
    pub fn answer(&self) -> Option<&io::Error> {
        match self {
            Self::Netlink(NetlinkError { source, .. }) | Self::Sysctl { source, .. } => Some(source),
            Self::Told { answer, .. } => Some(answer),
            Self::InTheWay { .. } => None,
        }
    }

    /// Whether the cause is a missing capability.
    pub fn is_missing_privilege(&self) -> bool {
        self.answer().is_some_and(|answer| answer.kind() == io::ErrorKind::PermissionDenied)
    }

    /// A hint for error numbers that do not show their cause.
    pub fn hint(&self) -> Option<&'static str> {
        match self.answer()?.kind() {
            io::ErrorKind::NetworkDown => Some("the loopback interface is down: ip link set lo up"),
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("/proc/sys is read-only here: set it from outside, e.g. docker run --sysctl NAME=1")
            }
            _ => None,
        }
    }
}

/// What happened to each item of a plan.
#[derive(Debug, Default)]
pub struct ApplyOutcome {
    /// Added now.
    pub added: Vec<Item>,
    /// Found there, and who added it.
    pub present: Vec<(Item, Tag)>,
    /// Not needed here, and why.
    pub skipped: Vec<(Item, &'static str)>,
    /// Needed, but could not be added.
    pub failed: Vec<(Item, RoutesError)>,
}

/// Adds each item that does not exist yet, tagged as `tag`. With [`Tag::Pinned`] it also retags what it finds
/// as [`Tag::Owned`].
pub(crate) fn apply(netlink: &mut Netlink, plan: &RoutePlan, tag: Tag) -> Result<ApplyOutcome, NetlinkError> {
    let mut outcome = ApplyOutcome::default();
    let kernel = KernelRoutes::read(netlink, table_of(plan))?;
    for item in plan.items.iter().cloned() {
        if let Some(reason) = void(&item.need) {
            outcome.skipped.push((item, reason));
            continue;
        }
        match bring(netlink, &kernel, &item.need, tag, !outcome.added.is_empty()) {
            Ok(None) => outcome.added.push(item),
            Ok(Some(whose)) => outcome.present.push((item, whose)),
            Err(error) => outcome.failed.push((item, error)),
        }
    }
    Ok(outcome)
}

/// Whether the plan's rules and routes are all in place. Changes nothing.
pub fn is_in_place(netlink: &mut Netlink, plan: &RoutePlan) -> Result<bool, NetlinkError> {
    let kernel = KernelRoutes::read(netlink, table_of(plan))?;
    let is_there = |item: &Item| void(&item.need).is_some() || kernel.satisfied_by(&item.need).is_some();
    Ok(plan.items.iter().all(is_there))
}

/// The table whose routes the plan is about.
pub fn table_of(plan: &RoutePlan) -> u32 {
    let table = |item: &Item| match &item.need {
        Need::LocalRoute(route) => Some(route.table),
        _ => None,
    };
    plan.items.iter().find_map(table).unwrap_or_default()
}

/// Why an item does not apply here: a host without IPv6 needs no IPv6 routes.
pub fn void(need: &Need) -> Option<&'static str> {
    let is_off = need.family() == super::item::IpFamily::V6
        && sysctl::read_named("net.ipv6.conf.lo.disable_ipv6") != Some(0);
    is_off.then_some("IPv6 is off here")
}

/// `None`: added now. `Some`: it existed already.
fn bring(
    netlink: &mut Netlink,
    kernel: &KernelRoutes,
    need: &Need,
    tag: Tag,
    something_was_added: bool,
) -> Result<Option<Tag>, RoutesError> {
    match kernel.satisfied_by(need) {
        // An exception needs a smaller priority than its rule. The rule may be new, so add the exception
        // again.
        Some(whose) if something_was_added && whose != Tag::Foreign && is_exception(need) => {}
        Some(Tag::Owned) if tag == Tag::Pinned => return retag(netlink, kernel, need, tag).map(|()| None),
        Some(whose) => return Ok(Some(whose)),
        None => {}
    }
    match need {
        Need::Rule(rule) => netlink.add_rule(message::rule(rule, tag, None))?,
        Need::LocalRoute(route) => make_route(netlink, kernel, route, tag)?,
        Need::Switch(switch) => turn_on(netlink, kernel, *switch, tag)?,
    }
    Ok(None)
}

fn is_exception(need: &Need) -> bool {
    matches!(need, Need::Rule(Rule { table: TABLE_MAIN, .. }))
}

fn make_route(
    netlink: &mut Netlink,
    kernel: &KernelRoutes,
    route: &LocalRoute,
    tag: Tag,
) -> Result<(), RoutesError> {
    if let (Some(source), Some(_)) = (route.source, kernel.in_the_way(route)) {
        return Err(RoutesError::InTheWay { table: route.table, wanted: source.to_string() });
    }
    let at = |f: &&FoundRoute| f.route.family == route.family && f.route.table == route.table;
    match kernel.routes.iter().find(at) {
        // Truepeer's own, but without the source address that is needed now.
        Some(found) => netlink.replace_route(message::route(route, found.tag.max(tag), found.metric))?,
        None => netlink.add_route(message::route(route, tag, None))?,
    }
    Ok(())
}

/// Writes the memo first: after a SIGKILL between the two, the old value is still known.
fn turn_on(
    netlink: &mut Netlink,
    kernel: &KernelRoutes,
    switch: Switch,
    tag: Tag,
) -> Result<(), RoutesError> {
    let before = sysctl::read(switch).and_then(|value| u16::try_from(value).ok()).unwrap_or_default();
    if !kernel.memos.iter().any(|m| m.switch == switch) {
        netlink.add_rule(message::memo_rule(Memo { switch, before, tag }))?;
    }
    sysctl::write(switch, 1).map_err(|source| RoutesError::Sysctl { name: switch.name(), source })
}

/// Changes the tag of what satisfies a need. Adds the new entry before it deletes the old one: no reply is
/// lost.
fn retag(netlink: &mut Netlink, kernel: &KernelRoutes, need: &Need, tag: Tag) -> Result<(), RoutesError> {
    match need {
        Need::Rule(rule) => {
            let same = |f: &&FoundRule| f.tag != Tag::Foreign && f.tag != tag && f.rule.is_same_as(rule);
            for found in kernel.rules.iter().filter(same) {
                retag_rule(netlink, found, tag)?;
            }
        }
        Need::LocalRoute(route) => {
            let same =
                |f: &&FoundRoute| f.tag != Tag::Foreign && f.tag != tag && f.route.table == route.table;
            for found in kernel.routes.iter().filter(same).filter(|f| f.route.family == route.family) {
                netlink.replace_route(message::route(&found.route, tag, found.metric))?;
            }
        }
        Need::Switch(switch) => {
            for memo in kernel.memos.iter().filter(|m| m.switch == *switch && m.tag != tag) {
                retag_memo(netlink, *memo, tag)?;
            }
        }
    }
    Ok(())
}

fn retag_rule(netlink: &mut Netlink, found: &FoundRule, tag: Tag) -> Result<(), NetlinkError> {
    netlink.add_rule(message::rule(&found.rule, tag, Some(found.priority)))?;
    netlink.delete_rule(message::rule(&found.rule, found.tag, Some(found.priority)))
}

fn retag_memo(netlink: &mut Netlink, memo: Memo, tag: Tag) -> Result<(), NetlinkError> {
    netlink.add_rule(message::memo_rule(Memo { tag, ..memo }))?;
    netlink.delete_rule(message::memo_rule(memo))
}

/// Retags what is pinned and `is_needed` as [`Tag::Owned`], so that the last process that needs it removes
/// it.
pub(crate) fn unpin(
    netlink: &mut Netlink,
    table: Option<u32>,
    is_needed: impl Fn(&Need) -> bool,
) -> Result<(), NetlinkError> {
    let kernel = KernelRoutes::read(netlink, table.unwrap_or_default())?;
    let chosen = |of: u32| table.is_none_or(|table| table == of);
    for found in kernel.rules.iter().filter(|f| f.tag == Tag::Pinned && chosen(f.rule.table)) {
        if is_needed(&Need::Rule(found.rule.clone())) {
            retag_rule(netlink, found, Tag::Owned)?;
        }
    }
    for found in kernel.routes.iter().filter(|f| f.tag == Tag::Pinned && chosen(f.route.table)) {
        if is_needed(&Need::LocalRoute(found.route.clone())) {
            netlink.replace_route(message::route(&found.route, Tag::Owned, found.metric))?;
        }
    }
    for memo in kernel.memos.iter().filter(|m| m.tag == Tag::Pinned) {
        if is_needed(&Need::Switch(memo.switch)) {
            retag_memo(netlink, *memo, Tag::Owned)?;
        }
    }
    Ok(())
}

/// Removes everything with one of these tags, except what `keep` returns true for. Returns what was removed.
pub(crate) fn sweep(
    netlink: &mut Netlink,
    tags: &[Tag],
    keep: impl Fn(&Need) -> bool,
) -> Result<Vec<Need>, NetlinkError> {
    let kernel = KernelRoutes::read(netlink, 0)?;
    let mut removed = Vec::new();
    for found in kernel.rules.iter().filter(|f| tags.contains(&f.tag)) {
        let need = Need::Rule(found.rule.clone());
        if !keep(&need) {
            let rule = message::rule(&found.rule, found.tag, Some(found.priority));
            forgive_absence(netlink.delete_rule(rule))?;
            removed.push(need);
        }
    }
    for found in kernel.routes.iter().filter(|f| tags.contains(&f.tag)) {
        let need = Need::LocalRoute(found.route.clone());
        if !keep(&need) {
            forgive_absence(netlink.delete_route(message::route(&found.route, found.tag, found.metric)))?;
            removed.push(need);
        }
    }
    for memo in kernel.memos.iter().filter(|m| tags.contains(&m.tag)) {
        let need = Need::Switch(memo.switch);
        if !keep(&need) {
            restore(netlink, *memo)?;
            removed.push(need);
        }
    }
    Ok(removed)
}

/// Restores the switch before it deletes the memo: after a SIGKILL between the two, the next sweep does it
/// again.
fn restore(netlink: &mut Netlink, memo: Memo) -> Result<(), NetlinkError> {
    // Don't overwrite a value that another program has set since.
    if sysctl::read(memo.switch) == Some(1) {
        let written = sysctl::write(memo.switch, memo.before);
        written.map_err(|source| NetlinkError { request: "restoring a sysctl", reason: None, source })?;
    }
    forgive_absence(netlink.delete_rule(message::memo_rule(memo)))
}

/// Another process may have deleted it already: that is no error.
fn forgive_absence(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    // The kernel answers ENOENT for rules, ESRCH for routes.
    const GONE: [i32; 2] = [rustix::io::Errno::NOENT.raw_os_error(), rustix::io::Errno::SRCH.raw_os_error()];
    match result {
        Err(e) if e.source.raw_os_error().is_some_and(|code| GONE.contains(&code)) => Ok(()),
        result => result,
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        line = format!("{line}: {cause}");
        next = cause.source();
    }
    line
}
