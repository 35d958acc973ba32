//! Paths whose MTU shrinks while a session lives.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{Bed, Topology};

use crate::line::Line;

/// After the shrinking.
const BYTES: usize = 3_000_000;
const MTU: u32 = 1280;

/// Where the path becomes narrow: a router's link, or the relay's own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Narrow {
    Router,
    Relay,
}

/// The bytes of this end go on, because it learns of it.
pub(crate) fn goes_on(bed: &Bed, v6: bool, narrow: Narrow, from: usize) -> Result<()> {
    let line = Line::make(bed)?;
    let mut session = line.spliced(v6)?;
    session.say(from, &[1; 50_000])?;
    let (host, device, counter) = match (narrow, from) {
        (Narrow::Router, 0) => ("far", "backend", "errors_translated"),
        (Narrow::Router, _) => ("near", "sender", "errors_translated"),
        (Narrow::Relay, 0) => ("relay", "far", "too_long"),
        (Narrow::Relay, _) => ("relay", "near", "too_long"),
    };
    line.host(host).ip(&[&format!("link set {device} mtu {MTU}")])?;
    session.carry(from, BYTES).context("behind the shrinking")?;
    ensure!(line.counter(counter)? > 0, "{counter} is 0: was the path narrow?");
    Ok(())
}

/// Another link between the relay and the router before the backend.
fn second_link(topology: &Topology) -> Result<()> {
    let (relay, far) = (topology.host("relay"), topology.host("far"));
    let there = format!("/proc/{}/fd/{}", std::process::id(), far.netns.as_fd().as_raw_fd());
    relay.ip(&[&format!("link add second index 150 type veth peer name second index 151 netns {there}")])?;
    for (host, end) in [(relay, 1), (far, 2)] {
        host.ip(&[
            &format!("addr add 10.77.90.{end}/24 dev second"),
            &format!("addr add fd77:90::{end}/64 dev second nodad"),
            "link set second up",
        ])?;
    }
    Ok(())
}

/// The link to the backend fails, and the routes take another one: the session follows once the silent peer
/// is asked.
pub(crate) fn follows_the_route(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::prepared(bed, &["near", "far", "second", "lo"], second_link)?;
    let mut session = line.spliced(v6)?;
    let (backend, own) = (session.tuples[1].0.ip(), session.tuples[1].1.ip());
    let (prefix, length) = if v6 { ("fd77:90::", 128) } else { ("10.77.90.", 32) };
    line.host("relay")
        .ip(&[&format!("route replace {backend}/{length} via {prefix}2 dev second"), "link set far down"])?;
    line.host("far").ip(&[&format!("route replace {own}/{length} via {prefix}1 dev second")])?;
    session.ends[0].write_all(b"by the second link")?;
    line.ask(&session, 1)?;
    session.hear(1, b"by the second link")?;
    session.say(1, b"and back")
}
