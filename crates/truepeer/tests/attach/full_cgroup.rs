//! A cgroup that has no room for more hooks (64 of a kind).

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Place;
use truepeer_bpf::test::header::crowd_cgroup;
use truepeer_testbed::{Bed, Program, Test, Topology, tests, wait_for};

use crate::cgroups::Cgroup;
use crate::containers::serve_in;
use crate::kit::{command, header, list, longer_header, who};

/// `BPF_CGROUP_MAX_PROGS` (kernel/bpf/cgroup.c).
const ROOM: usize = 64;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_full_cgroup_is_reported_and_nothing_is_left,
        a_failure_half_way_takes_nothing_from_what_was_attached
    ]
}

/// Tables are being exchanged, and some hooks have the new ones already, when there is no room for the next
/// hook.
fn a_failure_half_way_takes_nothing_from_what_was_attached(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let cgroup = Cgroup::make("half")?;
    let server = serve_in(bed, &cgroup.0, &host.netns, "0.0.0.0:80")?;
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
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let cgroup = Cgroup::make("full")?;
    let server = serve_in(bed, &cgroup.0, &host.netns, "0.0.0.0:80")?;
    let pid = server.pid().to_string();
    let args = |more: &[&'static str]| -> Result<Program> {
        command(bed, &[&["--pid", pid.as_str(), "--allow", "any", "--port", "80"], more].concat())
    };
    let is_attached = || -> Result<bool> {
        Ok(!command(bed, &["status", "--pid", &pid])?.run(bed)?.contains("not attached"))
    };
    // Mounts the file system for the pins.
    ensure!(!is_attached()?);
    let elsewhere = Place::here(&bed.dir().join("bpf/others"))?;
    let mut others = crowd_cgroup(&elsewhere, &cgroup.0, ROOM, true)?;
    let refused = |more: &[&'static str]| -> Result<()> {
        let attaching = args(more)?.start(bed)?;
        ensure!(!attaching.wait_end()?.success());
        let expected = format!(
            "peer_name4 can't be attached to {}: 64 programs of its kind are already attached there",
            cgroup.0.display()
        );
        ensure!(attaching.stderr().contains(&expected), "{}", attaching.stderr());
        Ok(())
    };

    refused(&[])?;
    ensure!(!is_attached()?);
    ensure!(list(&bed.dir().join("bpf/truepeer"))?.is_empty(), "pins are left");
    let sender = format!("{}:", lb.v4);
    ensure!(who(lb, host.at(false, 80), b"")?.starts_with(&sender), "something waits for a header");

    // Two free slots: for a moment the old and the new hook both exist.
    others.truncate(ROOM - 2);
    wait_for("room", || args(&[]).and_then(|program| program.run(bed)).is_ok())?;
    // An existing attachment stays as it is.
    others.extend(crowd_cgroup(&elsewhere, &cgroup.0, 1, true)?);
    refused(&["--port", "53/udp"])?;
    ensure!(who(lb, host.at(false, 80), &header("203.0.113.2:1002")?)? == "203.0.113.2:1002");
    command(bed, &["detach", "--pid", &pid])?.run(bed).context("detach")?;
    ensure!(list(&bed.dir().join("bpf/truepeer"))?.is_empty(), "pins are left");
    Ok(())
}
