//! A cgroup that has no room for more hooks (64 of a kind).

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Place;
use truepeer_bpf::oracle::crowd_cgroup;
use truepeer_testbed::{Bed, Program, Test, Topology, client, tests, wait_for};

use crate::cgroups::Cgroup;
use crate::kit::{BACKEND, DESTINATION, attach, command, header, list, longer_header, session, start, who};

/// `BPF_CGROUP_MAX_PROGS` (kernel/bpf/cgroup.c).
const ROOM: usize = 64;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_full_cgroup_is_reported_and_nothing_is_left,
        a_failure_half_way_takes_nothing_from_what_was_attached
    ]
}

/// Tables are being exchanged, and some hooks have the new ones already, when there is no room for the next hook.
fn a_failure_half_way_takes_nothing_from_what_was_attached(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let cgroup = Cgroup::make("half")?;
    let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.0.display());
    let server = truepeer_testbed::Behaviour::Who.start_program(bed, &["0.0.0.0:80"], |program| {
        program.launched_by("/bin/sh", &["-c", &shell, "sh"]).in_netns(&host.netns)
    })?;
    let pid = server.pid().to_string();
    let args = |more: &[&'static str]| -> Result<Program> {
        command(bed, &[&["--pid", pid.as_str(), "--allow", "any", "--port", "80"], more].concat())
    };
    args(&["--max-flows", "1000"])?.run(bed)?;
    let elsewhere = Place::here(&bed.dir().join("bpf/others"))?;
    let others = crowd_cgroup(&elsewhere, &cgroup.0, ROOM, false)?;
    let attaching = args(&["--port", "53/udp", "--max-flows", "2000"])?.start(bed)?;
    ensure!(!attaching.wait_end()?.success());
    ensure!(attaching.stderr().contains("udp_send4 can't be attached"), "{}", attaching.log());
    let is_served = |client: &str, header: &[u8]| -> Result<()> {
        let seen = who(lb, host.at(false, 80), header)?;
        ensure!(seen == client, "{seen:?} instead of {client}");
        Ok(())
    };
    is_served("203.0.113.1:1001", &header("203.0.113.1:1001")?)?;
    is_served("203.0.113.1:1002", &longer_header("203.0.113.1:1002")?)?;
    let status: serde_json::Value =
        serde_json::from_str(&command(bed, &["status", "--json", "--pid", &pid])?.run(bed)?)?;
    ensure!(status["max_flows"] == 1000 && status["ports"].as_array().map_or(0, Vec::len) == 1, "{status}");
    drop(others);
    args(&["--port", "53/udp", "--max-flows", "2000"])?.run(bed)?;
    is_served("203.0.113.1:1003", &header("203.0.113.1:1003")?)
}

fn a_full_cgroup_is_reported_and_nothing_is_left(bed: &Bed) -> Result<()> {
    let cgroup = Cgroup::make("full")?;
    let echo = truepeer_testbed::Behaviour::Echo.start(bed, &[BACKEND])?;
    // Mounts the file system for the pins.
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    let elsewhere = Place::here(&bed.dir().join("bpf/others"))?;
    let mut others = crowd_cgroup(&elsewhere, &cgroup.0, ROOM, true)?;
    let path = cgroup.0.to_string_lossy().into_owned();
    let refused = || -> Result<()> {
        let attaching = command(bed, &["--port", "80", "--port", "53/udp", "--cgroup", &path])?.start(bed)?;
        ensure!(!attaching.wait_end()?.success());
        let said = attaching.stderr();
        let expected = format!(
            "peer_name4 can't be attached to {path}: 64 programs of its kind are already attached there"
        );
        ensure!(said.contains(&expected) && said.trim().lines().count() == 1, "{said}");
        Ok(())
    };

    refused()?;
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    ensure!(list(&bed.dir().join("bpf/truepeer"))?.is_empty(), "pins are left");
    let line = client::v1("203.0.113.1:1001", DESTINATION)?;
    ensure!(client::ask(&mut session(&line)?, b"")?.as_bytes() == line, "something has read a header");

    // An existing attachment stays as it is.
    start(bed, &[])?;
    refused()?;
    let seen = |client: &str| -> Result<()> {
        ensure!(client::ask(&mut session(&header(client)?)?, b"data")? == "data");
        echo.wait_for_log(&format!("{client} accepted"))
    };
    seen("203.0.113.2:1002")?;

    // Two free slots: for a moment the old and the new hook both exist.
    drop(others.split_off(ROOM - 2));
    wait_for("room", || attach(bed, &["--port", "80", "--cgroup", &path]).is_ok())?;
    // The server is not in that cgroup, so it sees the sender.
    ensure!(client::ask(&mut session(&header("203.0.113.3:1003")?)?, b"data")? == "data");
    attach(bed, &["detach"]).context("detach")?;
    ensure!(list(&bed.dir().join("bpf/truepeer"))?.is_empty(), "pins are left");
    Ok(())
}
