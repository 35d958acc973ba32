//! TAIL: resets of our own sockets, after bytes were translated past them; and copies for them.

use std::io::{ErrorKind, Read};

use anyhow::{Context as _, Result, ensure};
use truepeer_bpf::test::other_programs::Marker;
use truepeer_splice::Progress;
use truepeer_testbed::Bed;

use crate::line::Line;

/// truepeer is killed in TAIL: both peers believe the resets of its sockets, though these don't know what was
/// translated. `is_removed`: the tables forget the flow before the sockets are closed.
pub(crate) fn believed(bed: &Bed, v6: bool, is_removed: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let mut session = line.session(v6)?;
    session.say(0, b"before")?;
    session.say(1, b"the same")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    session.go_to(Progress::Tail)?;
    session.say(0, &[7; 4000])?;
    session.say(1, &[8; 3000])?;
    if is_removed {
        session.remove();
    }
    session.die();
    for (side, end) in session.ends.iter().enumerate() {
        let seen = (&*end).read(&mut [0; 10]);
        let is_reset = matches!(&seen, Err(error) if error.kind() == ErrorKind::ConnectionReset);
        ensure!(is_reset, "end {side} sees {seen:?}, no reset");
    }
    Ok(())
}

/// A program in front of ours gives each packet a mark of its own, so that copies for our sockets lose
/// theirs.
pub(crate) fn copies_with_another_mark(bed: &Bed, v6: bool) -> Result<()> {
    let mut marker = None;
    let line = Line::prepared(bed, &["near", "far", "lo"], |topology| {
        marker = Some(topology.host("relay").run(|| Marker::attach(&["near", "far"]))??);
        Ok(())
    })?;
    let _marker = marker.context("attached")?;
    let mut session = line.session(v6)?;
    session.say(0, b"before")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    session.go_to(Progress::Tail)?;
    for _ in 0..3 {
        session.say(0, &[7; 4000])?;
        session.say(1, &[8; 3000])?;
    }
    session.offload()?;
    session.say(0, &[5; 3000])?;
    session.say(1, &[6; 3000])?;
    let [copied, stale] = ["copies_to_socket", "stale_copies"].map(|name| line.counter(name));
    let (copied, stale) = (copied?, stale?);
    ensure!((1..100).contains(&copied) && stale > 0, "{copied} copies, {stale} dropped");
    Ok(())
}
