//! A cgroup that has no room for more hooks (64 of a kind).

use anyhow::{Context, Result, ensure};
use truepeer_bpf::Place;
use truepeer_bpf::oracle::crowd_cgroup;
use truepeer_testbed::{Bed, Test, client, tests, wait_for};

use crate::cgroups::Cgroup;
use crate::kit::{BACKEND, DESTINATION, attach, command, header, list, session, start};

/// `BPF_CGROUP_MAX_PROGS` (kernel/bpf/cgroup.c).
const ROOM: usize = 64;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_full_cgroup_is_reported_and_nothing_is_left]
}

fn a_full_cgroup_is_reported_and_nothing_is_left(bed: &Bed) -> Result<()> {
    let cgroup = Cgroup::make("full")?;
    let echo = truepeer_testbed::Behaviour::Echo.start(bed, &[BACKEND])?;
    // Mounts the file system for the pins.
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    let elsewhere = Place::here(&bed.dir().join("bpf/others"))?;
    let mut others = crowd_cgroup(&elsewhere, &cgroup.0, ROOM)?;
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
