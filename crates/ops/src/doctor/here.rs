//! `truepeer doctor` without a port or a backend: what is there on this host, and whether clients are seen.

use std::collections::BTreeSet;

use anyhow::Result;
use truepeer_bpf::Traffic;
use truepeer_config::plan::{CheckedEntry, setup_of};
use truepeer_config::spec::RoutesMode;
use truepeer_routes::item::IpTransport;
use truepeer_routes::netlink::Netlink;
use truepeer_routes::options::local_addresses;
use truepeer_routes::plan::RoutePlan;

use super::listening;
use super::owners;
use super::report::{Check, Report};
use super::scene::{AtPort, Scene, SceneOptions};
use super::subject::{DoctorOptions, Subject};
use super::{attach, backend, port, privileges, routing};

/// So many servers that nobody stands before are shown.
const MOST_SERVERS: usize = 8;

pub(super) fn examine(options: &SceneOptions, report: &mut Report) -> Result<()> {
    let scene = Scene::look(options, report);
    let ports = ports(&scene);
    for at in &ports {
        port::examine(&scene, *at, report);
    }
    backends(&scene, options, report)?;
    let names_nothing = options.read.is_none() && scene.running.is_none() && scene.attached.is_none();
    if names_nothing {
        nothing(report);
    }
    if names_nothing || scene.attached.is_some() {
        attach::examine(report);
    }
    Ok(())
}

/// The ports that are attached, and those on which the running truepeer listens.
fn ports(scene: &Scene<'_>) -> BTreeSet<AtPort> {
    let attached = scene.attached.iter().flat_map(|attached| &attached.status.ports);
    let attached =
        attached.map(|one| AtPort { port: one.port, is_udp: matches!(one.traffic, Traffic::Udp(..)) });
    let listeners =
        scene.running.iter().flat_map(|status| &status.listeners).filter(|listener| listener.listening);
    let listening = listeners.flat_map(|listener| {
        let is_udp = listener.protocol.name() == "udp";
        listener.addresses.iter().map(move |address| AtPort { port: address.port(), is_udp })
    });
    attached.chain(listening).collect()
}

/// Whether backends of the file are reached, and their replies come back.
fn backends(scene: &Scene<'_>, options: &SceneOptions, report: &mut Report) -> Result<()> {
    let Some(loaded) = scene.loaded else { return Ok(()) };
    for entry in &loaded.checked.entries {
        let CheckedEntry::Relay { config, checked } = entry else { continue };
        let routing = setup_of(config, checked);
        if routing.backends.is_empty() && routing.dynamic.is_empty() {
            continue;
        }
        let sets_routes = config.routes.mode != RoutesMode::Manual;
        if sets_routes && scene.running.is_none() && !options.with_routes {
            let tried = "the backends of the file, as clients";
            let found = "no truepeer runs that sets rules and routes for their replies";
            report.add(Check::skip("backend_spoofed", tried, found).mend("truepeer doctor --try"));
            continue;
        }
        let options = DoctorOptions {
            routing,
            named: true,
            with_routes: options.with_routes,
            timeout: options.timeout,
            running: None,
            json: options.json,
        };
        examine_backends(&options, report)?;
    }
    Ok(())
}

fn examine_backends(options: &DoctorOptions, report: &mut Report) -> Result<()> {
    let setup = options.routing.setup()?;
    let _routes = super::routes_for(options, &setup)?;
    let plan = RoutePlan::for_setup(&setup);
    let mark = setup.mark.or(plan.upstream_mark);
    let local = local_addresses(&mut Netlink::open()?)?;
    let subject = Subject { options, setup, plan, mark, local };
    privileges::transparent(&subject, report);
    routing::examine(&subject, report)?;
    backend::examine(&subject, report);
    Ok(())
}

/// No truepeer, no file, nothing attached: the servers that are there.
fn nothing(report: &mut Report) {
    let found = "nothing is attached, no file is there, and no truepeer answers";
    report.add(Check::note("nothing", "truepeer on this host", found));
    let sockets = listening::sockets_of(IpTransport::Tcp);
    let sockets: Vec<_> = sockets.into_iter().filter(|socket| !socket.address.ip().is_loopback()).collect();
    let owners = owners::owners(&sockets.iter().map(|socket| socket.inode).collect::<Vec<_>>());
    let mut shown = BTreeSet::new();
    for socket in &sockets {
        let (port, owner) = (socket.address.port(), owners.get(&socket.inode));
        if owner.is_some_and(|owner| owner.is_truepeer() || owner.is_run()) || shown.len() == MOST_SERVERS {
            continue;
        }
        if shown.insert(port) {
            let owner = owner.map_or("a server".to_owned(), |owner| format!("{owner}"));
            let found = format!("{owner}: sees whoever connects to it");
            report.add(
                Check::note("server", format!("port {port}"), found).mend(format!("truepeer doctor {port}")),
            );
        }
    }
}
