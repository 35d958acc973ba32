//! Connections that have agreed on different things.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_splice::Progress;
use truepeer_sys::repair::offered_bytes;
use truepeer_testbed::{Bed, wait_for};

use crate::line::{Backend, ByHand, Line};

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

/// The backend's window closes while the session is held, and opens again before the cut. The sender would
/// ask for a wider one by itself, but only after a minute.
pub(crate) fn a_held_session_gets_on_when_a_window_opens(bed: &Bed, v6: bool) -> Result<()> {
    const BYTES: usize = 300_000;
    let line = Line::make(bed)?;
    let (options, router) = if v6 { ("-6 ", "fd77::2") } else { ("", "10.77.0.2") };
    line.host("sender").ip(&[&format!("{options}route replace default via {router} rto_min 60s")])?;
    let mut session = line.session(v6)?;
    session.say(0, b"before")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    session.go_to(Progress::Held)?;
    let [sender, backend] = &session.ends;
    let (mut writing, mut reading) = (sender.try_clone()?, backend.try_clone()?);
    writing.set_write_timeout(None)?;
    let sending = thread::spawn(move || writing.write_all(&[7; BYTES]));
    // At first the backend reads nothing, then all that has come.
    relay_all(&mut session)?;
    let mut bytes = Vec::new();
    reading.set_nonblocking(true)?;
    loop {
        let before = bytes.len();
        let _ = reading.read_to_end(&mut bytes);
        relay_all(&mut session)?;
        if bytes.len() == before {
            break;
        }
    }
    ensure!(!bytes.is_empty() && bytes.len() < BYTES, "{} bytes came: no window has closed", bytes.len());
    session.offload()?;
    wait_for("the rest", || {
        let _ = reading.read_to_end(&mut bytes);
        bytes.len() >= BYTES
    })
    .with_context(|| format!("{} of {BYTES} bytes came", bytes.len()))?;
    ensure!(bytes == [7; BYTES], "other bytes than were sent");
    Ok(sending.join().map_err(|_| anyhow::anyhow!("a panic"))??)
}

/// Until nothing has moved for a while.
fn relay_all(session: &mut ByHand) -> Result<()> {
    let (mut quiet_looks, mut relayed) = (0, 0);
    while quiet_looks < 100 {
        session.relay()?;
        let now = session.relayed_bytes();
        quiet_looks = if now == relayed { quiet_looks + 1 } else { 0 };
        relayed = now;
        thread::sleep(Duration::from_millis(3));
    }
    Ok(())
}
