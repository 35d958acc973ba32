//! `truepeer attach`: turns the plan into calls of the kernel programs in `truepeer-bpf`.

mod cgroup;
mod devices;
mod engine;
mod entry;
mod listeners;
mod privileges;
mod report;
mod target;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use truepeer_bpf::{
    AttachError, Cgroups, NewConnections, Others, Place, Rules, attach, detach_now, drain, left_behind,
    remove, status, sweep,
};

use crate::output::tell;
use crate::plan::attach_rules;
use crate::routes::netlink::Netlink;
use crate::routes::options::local_addresses;
use crate::spec::{AttachAction, AttachArgs, AttachPorts, AttachSpec, PlaceArgs, Port, defaults};

pub(crate) use entry::{leave, put, status_of};
pub(crate) use privileges::missing as missing_capabilities;

/// How often `detach` checks whether the last connection has ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the action in the network namespace that the command line names.
pub(crate) fn run(args: &AttachArgs, out: &mut (dyn Write + Send)) -> Result<()> {
    let place = match &args.action {
        None => &args.spec.place,
        Some(AttachAction::Add { spec }) => &spec.place,
        Some(
            AttachAction::Remove { place, .. }
            | AttachAction::Status { place, .. }
            | AttachAction::Detach { place, .. },
        ) => place,
    };
    let found = target::find(&place.target()).map_err(privileges::explain)?;
    found.run(|process| act(args, place, process, out)).map_err(privileges::explain)
}

fn act(
    args: &AttachArgs,
    place: &PlaceArgs,
    process: Option<u32>,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let place = Place::here(place.pins.as_deref().unwrap_or(defaults::pins()))?;
    match args.action {
        None => {
            let others = if args.spec.replace { Others::Leave } else { Others::AreNamed };
            put_in_place(&args.spec, others, &place, process, out)
        }
        Some(AttachAction::Add { ref spec }) => {
            let others = Others::Stay { may_be_taken: spec.replace };
            put_in_place(spec, others, &place, process, out)
        }
        Some(AttachAction::Remove { ref port, .. }) => remove_ports(&place, port, out),
        Some(AttachAction::Status { json, .. }) => {
            let (status, left_behind) = (status(&place)?, left_behind(&place)?.len());
            if json {
                report::write_json(&place, status.as_ref(), left_behind, out)
            } else {
                report::write(status.as_ref(), left_behind, out)
            }
        }
        Some(AttachAction::Detach { now, refuse_new, .. }) => {
            let new = if refuse_new { NewConnections::Refuse } else { NewConnections::Pass };
            if now {
                detach_now(&place, new)?
            } else {
                drain_and_detach(&place, new, out)?
            }
            tidy_up(&place, out)
        }
    }
}

/// Links left by network namespaces that no longer exist take up slots in the cgroup. Attaching needs those
/// slots.
fn tidy_up(place: &Place, out: &mut (dyn Write + Send)) -> Result<()> {
    match sweep(place) {
        Ok(0) => {}
        Ok(count) => {
            writeln!(out, "removed leftovers of network namespaces that no longer exist: {count}")?;
        }
        // A failed cleanup doesn't fail the command: the user asked for something else.
        Err(error) => {
            tell!(
                "warning: can't remove leftovers of network namespaces that no longer exist: {:#}",
                anyhow::Error::new(error)
            );
        }
    }
    Ok(())
}

fn names_of_devices(args: &AttachSpec) -> Vec<String> {
    if args.dev.is_empty() { vec!["all".to_owned()] } else { args.dev.clone() }
}

/// If nothing is left, the rest goes, too.
fn remove_ports(place: &Place, ports: &[AttachPorts], out: &mut (dyn Write + Send)) -> Result<()> {
    let all = || ports.iter().flat_map(|ports| &ports.0);
    let tcp = all().filter_map(|port| if let Port::Tcp(port) = *port { Some(port) } else { None });
    let udp = all().filter_map(|port| if let Port::Udp { from, .. } = *port { Some(from) } else { None });
    let is_any_left = remove(place, &tcp.collect(), &udp.collect())?;
    let named: Vec<String> = all().map(ToString::to_string).collect();
    writeln!(out, "no longer served: port {}", named.join(", "))?;
    if is_any_left {
        return Ok(());
    }
    drain_and_detach(place, NewConnections::Pass, out)?;
    tidy_up(place, out)
}

fn put_in_place(
    args: &AttachSpec,
    others: Others,
    place: &Place,
    process: Option<u32>,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let (rules, warnings) = attach_rules(args)?;
    for warning in &warnings {
        tell!("warning: {warning}");
    }
    put_rules(args, rules, others, place, process, &mut |warning| tell!("warning: {warning}"), out)
}

fn put_rules(
    args: &AttachSpec,
    mut rules: Rules,
    others: Others,
    place: &Place,
    process: Option<u32>,
    warn: &mut dyn FnMut(&str),
    out: &mut (dyn Write + Send),
) -> Result<()> {
    rules.own_addresses = local_addresses(&mut Netlink::open()?)?.into_iter().collect();
    let devices = devices::find(&names_of_devices(args))?;
    let (cgroups, warning) = cgroup::find(args.cgroup.as_deref(), args.unit.as_deref(), process)?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    warning.iter().for_each(|warning| warn(warning));
    let listeners = listeners::of_this_namespace();
    if process.is_some() {
        listeners::check_cgroups(listeners.as_deref().unwrap_or_default(), &rules.tcp_ports, &cgroups)?;
    }
    if args.dry_run {
        return dry_run(place, &rules, &names, &cgroups, out);
    }
    privileges::check()?;
    tidy_up(place, out)?;
    let attached = attach(place, &rules, others, &devices, &cgroups).map_err(with_advice)?;
    let by = if attached.by_tcx { "tcx" } else { "clsact" };
    writeln!(out, "attached to {} ({by}), port {}", names.join(", "), list(&rules))?;
    if attached.taken_over > 0 {
        writeln!(out, "{} open connections continue", attached.taken_over)?;
    }
    let warnings = listeners.map(|found| listeners::warnings(&found, &rules.tcp_ports)).unwrap_or_default();
    warnings.iter().for_each(|warning| warn(warning));
    if !attached.left.is_empty() {
        warn(&format!("no longer served, because they are not named: port {}", attached.left.join(", ")));
    }
    if let Some(kept) = attached.kept_max_flows {
        warn(&format!(
            "the tables still have room for {kept} connections, because some are open: attach again when none is, to have {}",
            rules.max_flows
        ));
    }
    Ok(())
}

/// What to type instead.
fn with_advice(error: AttachError) -> anyhow::Error {
    let advice = match error {
        AttachError::LeftOut { .. } => {
            "name all ports, which then have these rules; type attach add to add ports with their own rules; or add --replace to leave what is not named"
        }
        AttachError::Taken { .. } => "attach add --replace gives it these rules",
        AttachError::TooManyAttachments => "attach remove --port PORT takes ports out",
        error => return error.into(),
    };
    anyhow!("{error}: {advice}")
}

fn list(rules: &Rules) -> String {
    let tcp = rules.tcp_ports.iter().map(ToString::to_string);
    let udp = rules.udp_ports.iter().map(|(port, gate)| match gate.backend_port == *port {
        true => format!("{port}/udp"),
        false => format!("{port}:{}/udp", gate.backend_port),
    });
    tcp.chain(udp).collect::<Vec<_>>().join(", ")
}

fn dry_run(
    place: &Place,
    rules: &Rules,
    devices: &[&str],
    cgroups: &Cgroups,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    for device in devices {
        if !rules.tcp_ports.is_empty() {
            writeln!(out, "tc ingress {device}: tcp_ingress")?;
            writeln!(out, "tc egress {device}: tcp_egress")?;
        }
        if !rules.udp_ports.is_empty() {
            writeln!(out, "tc ingress {device}: udp_ingress")?;
            writeln!(out, "tc egress {device}: udp_egress")?;
        }
    }
    let (all, shown) = (cgroups.all.display(), cgroups.shown.display());
    writeln!(out, "cgroup {all}: cgroup_skb ingress")?;
    if !rules.tcp_ports.is_empty() {
        writeln!(out, "cgroup {shown}: getpeername4, getpeername6")?;
        writeln!(out, "cgroup {all}: sock_ops")?;
    }
    if !rules.udp_ports.is_empty() {
        writeln!(out, "cgroup {all}: sendmsg4, sendmsg6")?;
    }
    writeln!(out, "pins: {}", place.path().display())?;
    writeln!(out, "ports: {}", list(rules))?;
    let senders: Vec<String> = rules.senders.iter().map(|prefix| prefix.to_string()).collect();
    writeln!(out, "senders: {} (header: {})", senders.join(", "), rules_of(rules))?;
    Ok(())
}

/// The rule for all, and those of some.
fn rules_of(rules: &Rules) -> String {
    let each = rules.exceptions.iter().map(|(prefix, rule)| format!("{prefix}={rule}"));
    std::iter::once(rules.header.to_string()).chain(each).collect::<Vec<_>>().join(", ")
}

fn drain_and_detach(place: &Place, new: NewConnections, out: &mut (dyn Write + Send)) -> Result<()> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&is_interrupted)).context("can't wait for signals")?;
    }
    let mut told = 0;
    loop {
        let open = drain(place, new)?.total();
        if open == 0 {
            return Ok(detach_now(place, new)?);
        }
        if is_interrupted.load(Ordering::Relaxed) {
            bail!(
                "interrupted: {open} open connections are still served; new ones {}; type detach again to resume waiting and \
                 then remove everything, detach --now to cut them off, attach to check new ones again",
                fate_of(new)
            );
        }
        if open != told {
            writeln!(
                out,
                "waiting for {open} open connections (--now cuts them off); new ones {}",
                fate_of(new)
            )?;
            out.flush()?;
            told = open;
        }
        thread::sleep(DRAIN_INTERVAL);
    }
}

/// Describes how new connections are treated while `detach` waits.
fn fate_of(new: NewConnections) -> &'static str {
    match new {
        NewConnections::Pass => "pass unchecked, with their header (fail-open; --refuse-new refuses them)",
        NewConnections::Refuse => "are refused if their sender must send a header",
    }
}
