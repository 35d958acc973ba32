//! `truepeer attach`: turns the plan into calls of the kernel programs in `truepeer-bpf`.
#![forbid(unsafe_code)]

mod all;
mod bans;
mod cgroup;
mod detach;
mod devices;
mod engine;
mod entry;
mod follow;
mod following;
mod hints;
mod in_force;
mod kept;
mod listeners;
mod look;
mod network;
mod oci_hook;
mod privileges;
mod report;
mod target;
mod watch;
mod whois;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};
use truepeer_bpf::{
    AttachError, BanTable, Cgroups, NewConnections, Others, Place, Rules, attach, can_look, covered_cgroup,
    detach_now, find_pins, find_splice_pins, gone, left_behind, make_pins, port_list, status, sweep,
};

use truepeer_config::plan::{attach_rules, note_of_sender};
use truepeer_config::spec::{AttachAction, AttachArgs, AttachSpec, PlaceArgs, defaults};
use truepeer_policy::PrefixSet;
use truepeer_routes::netlink::Netlink;
use truepeer_routes::options::local_addresses;
use truepeer_sys::tell;

pub use bans::AttachedBans;
pub use devices::in_use as devices_in_use;
pub use entry::{leave, place_of, status_of, uncovered_of};
pub use following::Following;
pub use kept::{keep, keep_only, kept_bans, seconds_now};
pub use look::{Attached, Refused, attached_here, hints_of, listener_warnings};
pub use oci_hook::run as run_as_hook;
pub use privileges::missing as missing_capabilities;
pub use truepeer_bpf::{Connection, Named};
pub use whois::{Looked, connections_with};

/// Runs the action in the network namespace that the command line names.
pub fn run(args: &AttachArgs, out: &mut (dyn Write + Send)) -> Result<()> {
    let spec = match &args.action {
        None => Some(&args.spec),
        Some(AttachAction::Add { spec }) => Some(spec.as_ref()),
        Some(_) => None,
    };
    match spec.filter(|spec| spec.watch) {
        Some(spec) => watch::watch(spec, &mut |is_again, out| run_once(args, is_again, out), out),
        None => run_once(args, false, out),
    }
}

/// `is_again`: a watch attaches the same once more.
fn run_once(args: &AttachArgs, is_again: bool, out: &mut (dyn Write + Send)) -> Result<()> {
    let place = match &args.action {
        None => &args.spec.place,
        Some(AttachAction::Add { spec } | AttachAction::Remove { spec, .. }) => &spec.place,
        Some(
            AttachAction::Status { place, .. }
            | AttachAction::Sweep { place }
            | AttachAction::Detach { place, .. },
        ) => place,
    };
    match args.action {
        Some(AttachAction::Status { all: true, follow: true, json, .. }) => {
            let places = || Ok(Place::all(&pins(place.pins.as_deref(), false)?)?);
            follow::follow(&places, true, json, out)
        }
        Some(AttachAction::Status { all: true, json, .. }) => status_of_all(place, json, out),
        Some(AttachAction::Detach { all: true, now, refuse_new, .. }) => {
            detach::all(place, now, fate(refuse_new), out)
        }
        _ => target::find(&place.target())
            .and_then(|found| found.expect(place.netns_inode))
            .and_then(|found| found.run(|process| act(args, is_again, place, process, out))),
    }
    .map_err(privileges::explain)
}

/// Where all pins are. `may_mount`: a file system is mounted for them if there is none.
fn pins(named: Option<&Path>, may_mount: bool) -> Result<PathBuf> {
    Ok(match named.filter(|named| *named != defaults::pins()) {
        Some(named) => named.to_owned(),
        None if may_mount => make_pins()?,
        None => find_pins(),
    })
}

fn fate(refuse_new: bool) -> NewConnections {
    if refuse_new { NewConnections::Refuse } else { NewConnections::Pass }
}

fn status_of_all(place: &PlaceArgs, json: bool, out: &mut (dyn Write + Send)) -> Result<()> {
    let pins = pins(place.pins.as_deref(), false)?;
    let ((namespaces, _), left_behind) = (all::find(&pins)?, gone(&pins)?.len());
    let others = Place::of_other_versions(&pins)?;
    if json {
        return report::write_json_of_all(&namespaces, &others, left_behind, out);
    }
    for namespace in &namespaces {
        writeln!(out, "{}:", namespace.name())?;
        report::write(Some(&namespace.status), 0, out)?;
    }
    others.iter().try_for_each(|place| report::write_version(place, out))?;
    if namespaces.is_empty() && others.is_empty() {
        writeln!(out, "nothing is attached")?;
    }
    report::write_left_behind(left_behind, out)
}

fn act(
    args: &AttachArgs,
    is_again: bool,
    place: &PlaceArgs,
    process: Option<u32>,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let may_mount = match &args.action {
        None => !args.spec.dry_run,
        Some(AttachAction::Add { spec }) => !spec.dry_run,
        Some(_) => false,
    };
    let pins = pins(place.pins.as_deref(), may_mount)?;
    let place = Place::here(&pins)?;
    match args.action {
        None => {
            let others = match args.spec.replace {
                _ if is_again => Others::Stay { may_be_taken: true },
                true => Others::Leave,
                false => Others::AreNamed,
            };
            put_in_place(&args.spec, others, is_again, &place, process, out)
        }
        Some(AttachAction::Add { ref spec }) => {
            let others = Others::Stay { may_be_taken: spec.replace || is_again };
            put_in_place(spec, others, is_again, &place, process, out)
        }
        Some(AttachAction::Remove { ref spec, now }) => detach::remove_ports(&place, &spec.port, now, out),
        Some(AttachAction::Sweep { .. }) => {
            tidy_up(&place, out)?;
            // Tables of sessions that have left user space.
            tidy_up(&Place::here(&find_splice_pins())?, out)
        }
        Some(AttachAction::Status { follow: true, json, .. }) => {
            let places = || Ok(if place.exists()? { vec![place.clone()] } else { Vec::new() });
            follow::follow(&places, false, json, out)
        }
        Some(AttachAction::Status { json, .. }) => {
            let (status, left_behind) = (status(&place)?, left_behind(&place)?.len());
            ensure!(
                status.is_some() || pins != find_pins() || can_look(),
                "can't look for what is attached: no BPF file system is mounted here, and process 1's mounts can't be read; run it as root, \
                 or outside of this mount namespace with --netns NAME (instead of ip netns exec) or --pid PID"
            );
            let uncovered = if status.is_some() { devices::uncovered(&place)? } else { Vec::new() };
            if json {
                return report::write_json(&place, status.as_ref(), left_behind, uncovered, out);
            }
            match (&status, place.check_version()) {
                (None, Err(AttachError::OtherLayout { .. })) => report::write_version(&place, out)?,
                _ => report::write(status.as_ref(), left_behind, out)?,
            }
            if !uncovered.is_empty() {
                writeln!(
                    out,
                    "not covered: {}; connections that come in there are refused (refused_unjudged): attach again, or with --watch",
                    uncovered.join(", ")
                )?;
            }
            Ok(())
        }
        Some(AttachAction::Detach { now, refuse_new, .. }) => {
            let new = fate(refuse_new);
            place.check_version()?;
            if now {
                detach_now(&place, new)?
            } else {
                detach::drain_and_detach(&place, new, detach::OF_DETACH, out)?
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

fn put_in_place(
    args: &AttachSpec,
    others: Others,
    is_again: bool,
    place: &Place,
    process: Option<u32>,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let (rules, warnings) = attach_rules(args)?;
    // A watch warns once.
    let mut warn = |warning: &str| {
        if !is_again {
            tell!("warning: {warning}");
        }
    };
    warnings.iter().for_each(|warning| warn(warning));
    if let Some(note) = note_of_sender(args).filter(|_| !is_again) {
        writeln!(out, "{note}")?;
    }
    put_rules(args, rules, others, place, process, &mut warn, out)?;
    let is_followed = args.watch || args.dry_run || is_of_a_watch();
    if !is_followed && names_of_devices(args).iter().any(|name| name == "all") {
        writeln!(
            out,
            "interfaces that appear later are not covered: attach again then, or now with --watch"
        )?;
    }
    Ok(())
}

/// Whether this is the reload of a unit whose main process follows interfaces (MAINPID: systemd.exec(5)).
fn is_of_a_watch() -> bool {
    let words = std::env::var("MAINPID").and_then(|main| {
        std::fs::read(format!("/proc/{main}/cmdline")).map_err(|_| std::env::VarError::NotPresent)
    });
    words.is_ok_and(|words| words.split(|byte| *byte == 0).any(|word| word == b"--watch"))
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
    let named = names_of_devices(args);
    let mut devices = if args.watch { devices::existing(&named)? } else { devices::find(&named)? };
    if matches!(others, Others::Stay { .. }) {
        // Their programs know the attached ports, and let all others pass.
        devices.extend(devices::covered(place)?);
        devices.sort();
        devices.dedup();
    }
    let (cgroups, warning) =
        cgroup::find(args.cgroup.as_deref(), args.unit.as_deref(), process, covered_cgroup(place))?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    warning.iter().for_each(|warning| warn(warning));
    let listeners = listeners::of_this_namespace();
    let known = listeners.as_deref().unwrap_or_default();
    if process.is_some() {
        listeners::check_cgroups(known, &rules.tcp_ports, &cgroups)?;
    }
    if args.dry_run {
        return dry_run(place, &rules, &names, &cgroups, out);
    }
    let outside = listeners::outside(known, &rules.tcp_ports, &cgroups)?;
    privileges::check()?;
    tidy_up(place, out)?;
    let attached = attach(place, &rules, others, &devices, &cgroups).map_err(with_advice)?;
    if let Err(error) = ban_kept(place) {
        warn(&format!("no kept bans: {error:#}"));
    }
    let by = if attached.by_tcx { "tcx" } else { "clsact" };
    writeln!(out, "attached to {} ({by}), port {}", names.join(", "), list(&rules))?;
    if rules.senders == PrefixSet::loopback() {
        writeln!(
            out,
            "headers count from this host only; from a load balancer elsewhere with --allow PREFIX"
        )?;
    }
    if attached.taken_over > 0 {
        writeln!(out, "{} open connections continue", attached.taken_over)?;
    }
    let warnings = listeners
        .map(|found| listeners::warnings(&found, &rules.tcp_ports, rules.refuse_unshowable))
        .unwrap_or_default();
    warnings.iter().chain(&outside).for_each(|warning| warn(warning));
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

/// Bans that outlive a reboot or a detach.
fn ban_kept(place: &Place) -> Result<()> {
    let now = seconds_now();
    let bans = kept_bans(now)?;
    match BanTable::open(place)? {
        Some(mut table) if !bans.is_empty() => Ok(table.set(&bans, now).map(drop)?),
        _ => Ok(()),
    }
}

/// What to type instead.
fn with_advice(error: AttachError) -> anyhow::Error {
    let advice = match error {
        AttachError::LeftOut { .. } => {
            "name all ports, which then have these rules; type attach add to add ports with their own rules; or add --replace to leave what is not named"
        }
        AttachError::Taken { .. } => "attach add --replace gives it these rules",
        AttachError::NoBpfFilesystem { .. } => "leave --pins out: truepeer then finds or mounts one",
        AttachError::TooManyAttachments => "attach remove --port PORT takes ports out",
        error => return error.into(),
    };
    anyhow!("{error}: {advice}")
}

fn list(rules: &Rules) -> String {
    let (same, mapped): (Vec<_>, Vec<_>) =
        rules.udp_ports.iter().partition(|(port, rule)| rule.backend_port == **port);
    let tcp = port_list(rules.tcp_ports.iter().copied(), "");
    let udp = port_list(same.into_iter().map(|(port, _)| *port), "/udp");
    let mapped = mapped.into_iter().map(|(port, rule)| format!("{port}:{}/udp", rule.backend_port));
    tcp.into_iter().chain(udp).chain(mapped).collect::<Vec<_>>().join(", ")
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
        let own = if rules.shows_destination { ", getsockname4, getsockname6" } else { "" };
        writeln!(out, "cgroup {shown}: getpeername4, getpeername6{own} (by hooks on {all})")?;
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
