//! `truepeer routes show|apply|remove`.

use std::io::{self, Write};

use anyhow::{Context, Result, bail};

use super::apply::chain;
use super::apply::{self, ApplyOutcome};
use super::found::Tag;
use super::item::Need;
use super::kernel::KernelRoutes;
use super::netlink::Netlink;
use super::options::SetupOptions;
use super::owners::{Living, RulesLock};
use super::plan::RoutePlan;
use super::print::{command, script};

/// Writes what truepeer has added, which processes use it, and whether everything that the setup needs
/// exists.
///
/// Returns whether nothing is missing.
pub fn show(options: &SetupOptions, out: &mut dyn Write) -> Result<bool> {
    let setup = options.setup()?;
    let plan = RoutePlan::for_setup(&setup);
    let kernel = KernelRoutes::read(&mut Netlink::open()?, apply::table_of(&plan))?;
    write_owners(out)?;
    write_ours(&kernel, out)?;
    writeln!(out, "needed:")?;
    let mut complete = true;
    for item in &plan.items {
        let state = match (apply::void(&item.need), kernel.satisfied_by(&item.need)) {
            (Some(reason), _) => reason,
            (None, Some(tag)) => whose(tag),
            (None, None) => {
                complete = false;
                "MISSING"
            }
        };
        writeln!(out, "  {state:<16} {}", command(&item.need))?;
    }
    if let Some(mark) = plan.upstream_mark {
        writeln!(out, "  upstream sockets carry the mark {mark}")?;
    }
    Ok(complete)
}

fn write_owners(out: &mut dyn Write) -> io::Result<()> {
    match Living::read().map(|living| living.processes()) {
        Ok(owners) if owners.is_empty() => writeln!(out, "owners: none"),
        Ok(owners) => writeln!(out, "owners: {} (process {owners:?})", owners.len()),
        Err(error) => writeln!(out, "owners: unknown ({error})"),
    }
}

fn write_ours(kernel: &KernelRoutes, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "truepeer's own in the kernel (rules and routes with proto 123 or 124):")?;
    for found in kernel.rules.iter().filter(|f| f.tag != Tag::Foreign) {
        let need = Need::Rule(found.rule.clone());
        writeln!(out, "  {:<16} {} # priority {}", whose(found.tag), command(&need), found.priority)?;
    }
    for found in kernel.routes.iter().filter(|f| f.tag != Tag::Foreign) {
        let need = Need::LocalRoute(found.route.clone());
        writeln!(out, "  {:<16} {}", whose(found.tag), command(&need))?;
    }
    for memo in &kernel.memos {
        let name = memo.switch.name();
        writeln!(out, "  {:<16} sysctl -w {name}=1 # it was {}", whose(memo.tag), memo.before)?;
    }
    Ok(())
}

fn whose(tag: Tag) -> &'static str {
    match tag {
        Tag::Owned => "while used",
        Tag::Pinned => "until removed",
        Tag::Foreign => "not truepeer's",
    }
}

/// Adds what is missing, until [`remove`]. With `print` it only writes the commands.
///
/// # Errors
/// The first item that could not be added, after all were tried.
pub fn apply(options: &SetupOptions, print: bool, out: &mut dyn Write) -> Result<()> {
    let setup = options.setup()?;
    let plan = RoutePlan::for_setup(&setup);
    if print {
        return Ok(out.write_all(script(&plan, &setup).as_bytes())?);
    }
    let _lock = RulesLock::acquire();
    let outcome = apply::apply(&mut Netlink::open()?, &plan, Tag::Pinned)?;
    write_outcome(&outcome, out)?;
    if let Some(mark) = plan.upstream_mark {
        writeln!(out, "note     truepeer must mark its upstream sockets: --mark {mark}, or --routes auto")?;
    }
    match outcome.failed.as_slice() {
        [] => Ok(()),
        [(item, error), ..] if error.is_missing_privilege() => {
            bail!("{}: {} (CAP_NET_ADMIN is needed: run it as root)", command(&item.need), chain(error))
        }
        [(item, error), ..] => {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            bail!("{}: {}{hint}", command(&item.need), chain(error))
        }
    }
}

fn write_outcome(outcome: &ApplyOutcome, out: &mut dyn Write) -> io::Result<()> {
    for item in &outcome.added {
        writeln!(out, "added    {}", command(&item.need))?;
    }
    for (item, tag) in &outcome.present {
        writeln!(out, "present  {} # {}", command(&item.need), whose(*tag))?;
    }
    for (item, reason) in &outcome.skipped {
        writeln!(out, "skipped  {} # {reason}", command(&item.need))?;
    }
    for (item, error) in &outcome.failed {
        writeln!(out, "FAILED   {} # {}", command(&item.need), chain(error))?;
    }
    Ok(())
}

/// The options of `truepeer routes remove`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemoveOptions {
    /// Only rules that lead to this table, and routes in it.
    pub table: Option<u32>,
    /// Even while a running truepeer uses it.
    pub force: bool,
    /// Only write the commands.
    pub print: bool,
}

/// Removes what truepeer has added. What a running truepeer needs stays until the last such process ends.
pub fn remove(options: &RemoveOptions, out: &mut dyn Write) -> Result<()> {
    let mut netlink = Netlink::open()?;
    if options.print {
        return print_removal(&mut netlink, options.table, out);
    }
    let _lock = RulesLock::acquire();
    let living = if options.force {
        Living::default()
    } else {
        Living::read().context("reading the sockets in /proc/thread-self/net")?
    };
    apply::unpin(&mut netlink, options.table, |need| living.need(need))?;
    let others_table = |of: u32| options.table.is_some_and(|table| table != of);
    let is_others = |need: &Need| match need {
        Need::Rule(rule) => others_table(rule.table),
        Need::LocalRoute(route) => others_table(route.table),
        Need::Switch(_) => false,
    };
    let removed = apply::sweep(&mut netlink, &Tag::OURS, |need| is_others(need) || living.need(need))?;
    let count = |is_kind: fn(&Need) -> bool| removed.iter().filter(|need| is_kind(need)).count();
    writeln!(
        out,
        "removed {} rules, {} routes; {} sysctls are as before",
        count(|need| matches!(need, Need::Rule(_))),
        count(|need| matches!(need, Need::LocalRoute(_))),
        count(|need| matches!(need, Need::Switch(_)))
    )?;
    let owners = living.processes();
    if !owners.is_empty() {
        writeln!(
            out,
            "left in place: what process {owners:?} needs; the last of them removes it (or --force)"
        )?;
    }
    if options.force {
        let owners = Living::read().map(|living| living.processes()).unwrap_or_default();
        if !owners.is_empty() {
            writeln!(
                out,
                "process {owners:?} puts back what it needs within a second or so: end it first, or start it with --routes manual"
            )?;
        }
    }
    Ok(())
}

fn print_removal(netlink: &mut Netlink, table: Option<u32>, out: &mut dyn Write) -> Result<()> {
    let kernel = KernelRoutes::read(netlink, 0)?;
    let chosen = |of: u32| table.is_none_or(|table| table == of);
    let deletion = |need| command(&need).replacen(" add ", " del ", 1);
    for found in kernel.rules.iter().filter(|f| f.tag != Tag::Foreign && chosen(f.rule.table)) {
        let line = deletion(Need::Rule(found.rule.clone()));
        writeln!(out, "{line} priority {} protocol {}", found.priority, found.tag.protocol())?;
    }
    for found in kernel.routes.iter().filter(|f| f.tag != Tag::Foreign && chosen(f.route.table)) {
        let line = deletion(Need::LocalRoute(found.route.clone()));
        writeln!(out, "{line} proto {}", found.tag.protocol())?;
    }
    for memo in &kernel.memos {
        writeln!(out, "sysctl -w {}={}", memo.switch.name(), memo.before)?;
        writeln!(out, "ip rule del nop priority {}", memo.priority())?;
    }
    Ok(())
}
