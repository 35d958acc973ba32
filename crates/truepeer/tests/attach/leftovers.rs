//! Network namespaces that end with something attached, and those that only seem to have ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::{Bed, Behaviour, Host, NetNs, Program, Running, Test, Topology, client, ip_here};

use crate::kit::{attachments, command, header, list};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("leftovers_of_a_dead_namespace_are_removed", leftovers_of_a_dead_namespace_are_removed)
            .needs_program("bpftool")
            .time_limit(Duration::from_secs(240)), // many programs, one after the other
        Test::new("a_namespace_without_process_is_alive", a_namespace_without_process_is_alive),
        Test::new("a_namespace_whose_device_is_gone_is_alive", a_namespace_whose_device_is_gone_is_alive),
        Test::new("a_witness_that_was_detached_is_replaced", a_witness_that_was_detached_is_replaced)
            .needs_program("bpftool")
            .time_limit(Duration::from_secs(240)),
    ]
    .into_iter()
    .map(|test| test.of_group("leftovers"))
    .collect()
}

fn attach_in(bed: &Bed, netns: &NetNs, args: &[&str]) -> Result<String> {
    command(bed, &[&["--port", "80", "--allow", "any"], args].concat())?.in_netns(netns).run(bed)
}

fn status_in(bed: &Bed, netns: &NetNs) -> Result<Value> {
    Ok(serde_json::from_str(&command(bed, &["status", "--json"])?.in_netns(netns).run(bed)?)?)
}

fn ask_bpftool(bed: &Bed, args: &[&str]) -> Result<Value> {
    let text = Program::new("bpftool").arg("--json").args(args).run(bed)?;
    serde_json::from_str(&text).with_context(|| text)
}

/// The directories of the pinned links of each network namespace.
fn link_directories(bed: &Bed) -> Result<Vec<PathBuf>> {
    Ok(attachments(bed)?.into_iter().map(|pins| pins.join("links")).collect())
}

/// The ids of the programs whose links are pinned here.
fn programs_pinned(bed: &Bed, links: &Path) -> Result<Vec<u64>> {
    let number = |pin: PathBuf| -> Result<u64> {
        let link = ask_bpftool(bed, &["link", "show", "pinned", &pin.to_string_lossy()])?;
        link["prog_id"].as_u64().with_context(|| format!("prog_id in {link}"))
    };
    list(links)?.into_iter().map(number).collect()
}

/// The programs that are attached to the root cgroup.
fn programs_of_cgroup(bed: &Bed) -> Result<Vec<u64>> {
    let root = truepeer_bpf::cgroup_root()?;
    let found = ask_bpftool(bed, &["cgroup", "show", &root.to_string_lossy()])?;
    Ok(found.as_array().into_iter().flatten().filter_map(|program| program["id"].as_u64()).collect())
}

/// A network namespace like a container's, with a backend.
struct Container {
    line: Topology,
    _backend: Running,
    hooks: Vec<u64>,
}

impl Container {
    fn start(bed: &Bed) -> Result<Container> {
        let line = Topology::line(&["lb", "host"])?;
        let netns = &line.host("host").netns;
        let backend =
            Behaviour::Who.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(netns))?;
        let before = link_directories(bed).unwrap_or_default();
        attach_in(bed, netns, &[])?;
        let links = link_directories(bed)?.into_iter().find(|links| !before.contains(links));
        let pinned = programs_pinned(bed, &links.context("the links of a new namespace")?)?;
        let attached = programs_of_cgroup(bed)?;
        let hooks: Vec<u64> = pinned.into_iter().filter(|number| attached.contains(number)).collect();
        ensure!(hooks.len() == 4, "peer_name4, peer_name6, tcp_end and backstop, but {hooks:?}");
        Ok(Container { line, _backend: backend, hooks })
    }

    fn host(&self) -> &Host {
        self.line.host("host")
    }

    fn names_the_client(&self) -> Result<()> {
        let to = self.host().at(false, 80);
        let header = header("203.0.113.1:1001")?;
        let seen = self.line.host("lb").run(|| client::ask(&mut client::connect(to)?, &header))??;
        ensure!(seen.trim() == "203.0.113.1:1001", "{seen}");
        Ok(())
    }
}

fn leftovers_of_a_dead_namespace_are_removed(bed: &Bed) -> Result<()> {
    let (dying, living) = (Container::start(bed)?, Container::start(bed)?);
    dying.names_the_client()?;
    let hooks = dying.hooks.clone();
    drop(dying);
    // The kernel needs a moment to end it, and its pins still exist.
    bed.wait_for("the end to be seen", || {
        status_in(bed, &living.host().netns).is_ok_and(|status| status["left_behind"] == 1)
    })?;
    ensure!(hooks.iter().all(|hook| programs_of_cgroup(bed).is_ok_and(|attached| attached.contains(hook))));
    let said = command(bed, &["status"])?.in_netns(&living.host().netns).run(bed)?;
    ensure!(said.contains("that no longer exist: 1;"), "{said}");

    let third = Container::start(bed)?;
    let attached = programs_of_cgroup(bed)?;
    ensure!(!hooks.iter().any(|hook| attached.contains(hook)), "{hooks:?} are among {attached:?} still");
    ensure!(living.hooks.iter().all(|hook| attached.contains(hook)), "{:?}: {attached:?}", living.hooks);
    ensure!(link_directories(bed)?.len() == 2);
    living.names_the_client()?;
    third.names_the_client()?;

    // Sweeping removes them and nothing else. Detaching removes leftovers, too.
    let netns = living.host().netns.clone();
    drop(third);
    bed.wait_for("its end", || status_in(bed, &netns).is_ok_and(|status| status["left_behind"] == 1))?;
    let said = command(bed, &["sweep"])?.run(bed)?;
    ensure!(said.contains("leftovers of network namespaces that no longer exist: 1"), "{said}");
    living.names_the_client()?;
    drop(Container::start(bed)?);
    bed.wait_for("the other end", || status_in(bed, &netns).is_ok_and(|status| status["left_behind"] == 1))?;
    let said = command(bed, &["detach", "--now"])?.in_netns(&netns).run(bed)?;
    ensure!(said.contains("leftovers of network namespaces that no longer exist: 1"), "{said}");
    ensure!(list(&bed.dir().join("bpf/truepeer"))?.is_empty());
    Ok(())
}

/// Held by a descriptor here. A mount or another process's socket could hold it as well.
fn a_namespace_without_process_is_alive(bed: &Bed) -> Result<()> {
    let (held, other) = (NetNs::create()?, NetNs::create()?);
    for netns in [&held, &other] {
        netns.run(|| ip_here(&["link set lo up"]))??;
        attach_in(bed, netns, &["--dev", "lo"])?;
    }
    let said = attach_in(bed, &other, &[])?;
    ensure!(!said.contains("removed"), "{said}");
    ensure!(status_in(bed, &held)?["ports"][0]["port"] == 80);
    Ok(())
}

/// Attached to that device only. The witness is on the loopback.
fn a_namespace_whose_device_is_gone_is_alive(bed: &Bed) -> Result<()> {
    let (lives, other) = (Topology::line(&["lb", "host"])?, NetNs::create()?);
    let host = lives.host("host");
    attach_in(bed, &host.netns, &["--dev", "lb"])?;
    host.ip(&["link del lb"])?;
    other.run(|| ip_here(&["link set lo up"]))??;
    let said = attach_in(bed, &other, &["--dev", "lo"])?;
    ensure!(!said.contains("removed"), "{said}");
    ensure!(status_in(bed, &host.netns)?["ports"][0]["port"] == 80);
    // When it ends, that is recognised nevertheless.
    drop(lives);
    bed.wait_for("the end to be seen", || {
        status_in(bed, &other).is_ok_and(|status| status["left_behind"] == 1)
    })?;
    let said = attach_in(bed, &other, &["--dev", "lo"])?;
    ensure!(said.contains("leftovers of network namespaces that no longer exist: 1"), "{said}");
    Ok(())
}

/// Detached by force, as with bpftool. It then looks like an ended namespace, and would be believed once no
/// other link contradicts it.
fn a_witness_that_was_detached_is_replaced(bed: &Bed) -> Result<()> {
    let (lives, other) = (Topology::line(&["lb", "host"])?, NetNs::create()?);
    let host = lives.host("host");
    attach_in(bed, &host.netns, &["--dev", "lb"])?;
    let witness = link_directories(bed)?.pop().context("the links")?.join("witness");
    Program::new("bpftool").args(["link", "detach", "pinned"]).arg(&witness).run(bed)?;
    attach_in(bed, &host.netns, &["--dev", "lb"])?;
    host.ip(&["link del lb"])?;
    other.run(|| ip_here(&["link set lo up"]))??;
    let said = attach_in(bed, &other, &["--dev", "lo"])?;
    ensure!(!said.contains("removed"), "{said}");
    ensure!(status_in(bed, &host.netns)?["ports"][0]["port"] == 80);
    Ok(())
}
