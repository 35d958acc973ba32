//! Connections that have agreed on different things.

use std::fs;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::Bed;

use crate::line::{Backend, Line};

/// The device of a backend on the relay's host takes segments of 64 KiB, and the sender's path 1500 bytes.
pub(crate) fn leaves_beside_loopback(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let on_loopback = Backend { is_on_loopback: true, ..Backend::default() };
    let mut unlimited = line.session_to(v6, Backend { has_short_segments: false, ..on_loopback })?;
    let stays = line.arm(&mut unlimited).map_err(|stays| format!("{stays:#}"));
    ensure!(stays.is_err_and(|why| why.contains("too long")), "long segments leave");
    let mut session = line.session_to(v6, on_loopback)?;
    line.let_go(&mut session)?;
    for side in [0, 1] {
        session.carry(side, 3_000_000).with_context(|| format!("from {side}"))?;
    }
    ensure!(line.counter("too_long")? == 0, "segments were too long");
    Ok(())
}

/// With a receive buffer of up to 2 GiB a step of our window scale is 16 KiB: a narrow window would be rounded down to none.
pub(crate) fn a_window_of_less_than_a_step_stays(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    line.host("relay").run(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 2147483647"))??;
    let mut session = line.session_to(v6, Backend { receive_buffer: Some(2048), ..Backend::default() })?;
    session.say(0, b"before")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    ensure!(session.waits_for_windows()?, "the hand-over goes on");
    session.say(0, &[5; 1000])?;
    session.say(1, &[6; 1000])
}
