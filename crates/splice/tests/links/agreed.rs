//! Connections that have agreed on different things.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_splice::Progress;
use truepeer_sys::repair::offered_bytes;
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
    line.offload(&mut session)?;
    for side in [0, 1] {
        session.carry(side, 3_000_000).with_context(|| format!("from {side}"))?;
    }
    ensure!(line.counter("too_long")? == 0, "segments were too long");
    Ok(())
}

/// With a receive buffer of up to 2 GiB a step of our window scale is 16 KiB: a narrow window would be
/// rounded down to none.
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

/// While the relay holds the windows, its scale is 10 and the sender's 7: rounded down to 1024 bytes, an
/// offer would end before the last one, by more than the 128 bytes that the sender's kernel forgives.
pub(crate) fn an_offer_is_not_taken_back(bed: &Bed, v6: bool) -> Result<()> {
    const FORGIVEN: u64 = 128;
    let line = Line::make(bed)?;
    line.host("sender").run(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 16384 16384"))??;
    let mut session = line.session_to(v6, Backend { receive_buffer: Some(16_384), ..Backend::default() })?;
    session.say(0, b"before")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    session.go_to(Progress::Held)?;
    let own = |name| session.entry().iter().find(|(other, _)| other == name).map(|(_, value)| *value);
    ensure!((own("own_scale"), own("peer_scale")) == (Some(10), Some(7)), "{:?}", session.entry());
    // The backend reads nothing, so the window closes.
    let (mut most, mut offers) = (0, 0);
    for _ in 0..230 {
        session.ends[0].write_all(&[5; 300])?;
        thread::sleep(Duration::from_millis(1));
        session.relay()?;
        let offered = offered_bytes(session.ends[0].as_fd())?;
        ensure!(offered + FORGIVEN > most, "{most} bytes were offered, and now {offered}");
        offers += usize::from(offered != most);
        most = most.max(offered);
    }
    ensure!(offers > 10, "only {offers} offers");
    Ok(())
}
