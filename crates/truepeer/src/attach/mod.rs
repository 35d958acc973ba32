//! `truepeer attach`: what the words on the command line mean to the kernel programs of `truepeer-bpf`.

mod cgroup;
mod devices;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use truepeer_bpf::{Place, Rules, attach, detach_now, drain, status};
use truepeer_sys::netns::NetNs;

use crate::args::{AttachAction, AttachArgs, PlaceArgs};

/// How often a detachment looks whether the last connection has ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(200);

/// Does what was asked for, in the network namespace that was named.
pub(crate) fn run(args: &AttachArgs, out: &mut (dyn Write + Send)) -> Result<()> {
    let place = match &args.action {
        None => &args.place,
        Some(AttachAction::Status { place, .. } | AttachAction::Detach { place, .. }) => place,
    };
    match &place.netns {
        None => act(args, place, out),
        Some(name) => {
            let path = netns_path(name);
            let netns = NetNs::open(&path).with_context(|| format!("--netns {}", name.display()))?;
            netns.run(|| act(args, place, out))?
        }
    }
}

/// A name is one of ip-netns(8).
fn netns_path(name: &Path) -> PathBuf {
    if name.components().count() > 1 { name.to_owned() } else { Path::new("/run/netns").join(name) }
}

fn act(args: &AttachArgs, place: &PlaceArgs, out: &mut (dyn Write + Send)) -> Result<()> {
    let place = Place::here(&place.pins)?;
    match args.action {
        None => put_in_place(args, &place, out),
        Some(AttachAction::Status { json, .. }) => {
            let status = status(&place)?;
            if json { report::write_json(status.as_ref(), out) } else { report::write(status.as_ref(), out) }
        }
        Some(AttachAction::Detach { now: true, .. }) => Ok(detach_now(&place)?),
        Some(AttachAction::Detach { .. }) => drain_and_detach(&place, out),
    }
}

fn put_in_place(args: &AttachArgs, place: &Place, out: &mut (dyn Write + Send)) -> Result<()> {
    let rules = args.rules()?;
    let devices = devices::find(&args.dev)?;
    let cgroup = cgroup::find(args.cgroup.as_deref(), args.unit.as_deref())?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    if let Some(warning) = &cgroup.warning {
        eprintln!("warning: {warning}");
    }
    if args.dry_run {
        return dry_run(place, &rules, &names, &cgroup.path, out);
    }
    let attached = attach(place, &rules, &devices, &cgroup.path)?;
    let by = if attached.by_tcx { "tcx" } else { "clsact" };
    writeln!(out, "attached to {} ({by}), port {}", names.join(", "), list(&rules))?;
    if attached.taken_over > 0 {
        writeln!(out, "{} open connections go on", attached.taken_over)?;
    }
    Ok(())
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
    cgroup: &Path,
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
    let root = truepeer_bpf::cgroup_root()?;
    if !rules.tcp_ports.is_empty() {
        writeln!(out, "cgroup {}: getpeername4, getpeername6", cgroup.display())?;
        writeln!(out, "cgroup {}: sock_ops", root.display())?;
    }
    if !rules.udp_ports.is_empty() {
        writeln!(out, "cgroup {}: sendmsg4, sendmsg6", root.display())?;
    }
    writeln!(out, "pins: {}", place.path().display())?;
    writeln!(out, "ports: {}", list(rules))?;
    let senders: Vec<String> = rules.senders.iter().map(|prefix| prefix.to_string()).collect();
    writeln!(out, "senders: {} (header: {})", senders.join(", "), rules.header)?;
    Ok(())
}

fn drain_and_detach(place: &Place, out: &mut (dyn Write + Send)) -> Result<()> {
    let mut told = 0;
    loop {
        let open = drain(place)?.total();
        if open == 0 {
            return Ok(detach_now(place)?);
        }
        if open != told {
            writeln!(out, "no new connections; waiting for {open} open ones (to cut them off: --now)")?;
            out.flush()?;
            told = open;
        }
        thread::sleep(DRAIN_INTERVAL);
    }
}
