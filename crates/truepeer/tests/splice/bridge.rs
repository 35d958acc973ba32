//! A backend behind a bridge, as containers are: after the hand-over, segments to it go by the bridge.

use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Test, ip_here, tests};

use crate::stand::{self, Stand, TRUEPEER, echo, open, open_at, spliced_at, spliced_to};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_backend_behind_a_bridge_whose_port_has_an_address,
        changed_routes_end_no_session,
        why_a_session_stays_is_told,
        a_backend_on_loopback_leaves_beside_a_sender_on_ethernet,
    ]
}

const BACKEND: &str = "10.79.0.2:8000";

fn container() -> Result<NetNs> {
    mount_bpf_in_place()?;
    bridged()
}

/// A container at a bridge. As Docker's, the bridge's port has the link-local address that every device has.
pub(crate) fn bridged() -> Result<NetNs> {
    let container = NetNs::create()?;
    let there = format!("/proc/{}/fd/{}", std::process::id(), container.as_fd().as_raw_fd());
    ip_here(&[
        "link add bridge type bridge",
        "addr add 10.79.0.1/24 dev bridge",
        "link set bridge up",
        &format!("link add port type veth peer name eth netns {there}"),
        "link set port master bridge",
        "addr add fe80::1234/64 dev port nodad",
        "link set port up",
    ])?;
    container.run(|| {
        ip_here(&[
            "link set lo up",
            "addr add 10.79.0.2/24 dev eth",
            "link set eth up",
            "route add default via 10.79.0.1",
        ])
    })??;
    Ok(container)
}

fn behind_a_bridge(bed: &Bed) -> Result<(Stand, NetNs)> {
    let container = container()?;
    let backend = container.run(|| Behaviour::Echo.start(bed, &[BACKEND]))??;
    let truepeer = spliced_to(bed, BACKEND, &[]).start(bed)?;
    Ok((Stand { truepeer, backend, admin: bed.dir().join("admin") }, container))
}

/// A session with its backend that has left.
fn spliced_behind_a_bridge(bed: &Bed) -> Result<(Stand, NetNs, TcpStream)> {
    // The sender's segments must fit through the bridge.
    ip_here(&["link set lo mtu 1500"])?;
    let (stand, container) = behind_a_bridge(bed)?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream)).context("while it leaves")?;
    Ok((stand, container, stream))
}

fn why_a_session_stays_is_told(bed: &Bed) -> Result<()> {
    let (stand, _container) = behind_a_bridge(bed)?;
    let mut stream = open(0)?;
    echo(&mut stream, &[1; 3000])?;
    let status = stand.ask(bed, &["status"])?;
    ensure!(crate::wire::counts_one(&status, "segment_sizes"), "{status}");
    let relayed = stand.ask(bed, &["sessions"])?;
    ensure!(relayed.contains(" relaying "), "{relayed}");
    let doctor = Program::new(TRUEPEER).args(["doctor", "-4", BACKEND, "--admin"]).arg(&stand.admin);
    let doctor = doctor.start(bed)?;
    doctor.wait_end()?;
    let report = doctor.stdout();
    let line = report.lines().find(|line| line.contains("left user space)")).context("no line")?;
    let wanted = "(0 have left user space): stayed: once: \
        segments of one side don't fit through the other's path (segment_sizes)";
    ensure!(line.starts_with("note") && line.ends_with(wanted), "{line}");
    Ok(())
}

/// Loopback's segments of 64 KiB would not fit through the sender's path: the backend's are shorter from the
/// beginning.
fn a_backend_on_loopback_leaves_beside_a_sender_on_ethernet(bed: &Bed) -> Result<()> {
    const DOOR: &str = "10.79.0.1:8443";
    let container = container()?;
    let backend = Behaviour::Echo.start(bed, &[stand::BACKEND])?;
    let truepeer = spliced_at(bed, DOOR, &["--allow", "10.79.0.2"]).start(bed)?;
    let stand = Stand { truepeer, backend, admin: bed.dir().join("admin") };
    let mut stream = container.run(|| open_at(DOOR, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    for len in [1, 3000, 200_000] {
        echo(&mut stream, &vec![4; len]).with_context(|| format!("{len} bytes"))?;
    }
    Ok(())
}

fn a_backend_behind_a_bridge_whose_port_has_an_address(bed: &Bed) -> Result<()> {
    let (_stand, _container, mut stream) = spliced_behind_a_bridge(bed)?;
    ip_here(&["neigh flush dev bridge"])?;
    for _ in 0..20 {
        echo(&mut stream, &[3; 3000]).context("after it has left")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Routes change at each start of a container, and with each renewed lease. Then the routes that sockets
/// remember are void.
fn changed_routes_end_no_session(bed: &Bed) -> Result<()> {
    let (_stand, container, mut stream) = spliced_behind_a_bridge(bed)?;
    for number in 0..5 {
        let route = format!("route add 10.80.{number}.0/24 dev bridge");
        ip_here(&[&route])?;
        container.run(|| ip_here(&[&route.replace("bridge", "eth")]))??;
        echo(&mut stream, &[3; 3000]).context("after a change of routes")?;
    }
    Ok(())
}
