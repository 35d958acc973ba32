//! Reloads and stops while senders have connected and sent nothing: the kernel remembers nothing of them.

use std::fs;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, Test, client as sender, tests};

use crate::stand::{SERVED, Stand, client, echo, header};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_reload_that_ends_full_resets_no_sender_that_is_silent,
        a_stop_resets_no_sender_that_is_silent,
        a_reload_that_adds_full_says_that_it_waits,
        sessions_of_the_kernel_take_no_descriptors,
        reloads_that_move_all_listeners_have_the_kernel_serve_them,
    ]
}

/// A truepeer with `--splice full` or `auto`, by a configuration file that can change.
fn serve<'b>(bed: &'b Bed, splice: &str) -> Result<Stand<'b>> {
    let mut stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.truepeer.stop()?;
    stand.next_with(splice, &[])?;
    Ok(stand)
}

fn a_reload_that_ends_full_resets_no_sender_that_is_silent(bed: &Bed) -> Result<()> {
    let stand = serve(bed, "full")?;
    for (made, v6) in [(1, false), (2, true)] {
        stand.learn(v6)?;
        stand.open(v6, 5000)?;
        // truepeer learns of it a moment later.
        stand.wait_made(made)?;
    }
    let silent = [stand.connect(false)?, stand.connect(true)?];
    stand.configure("auto")?;
    stand.reload()?;
    for (mut stream, v6) in silent.into_iter().zip([false, true]) {
        stream.write_all(&header(v6, 5001)?)?;
        echo(&mut stream, &[4; 3000])?;
        stand.backend.wait_for_log(&format!("{} accepted", client(v6, 5001)))?;
        stand.open(v6, 5002)?;
    }
    ensure!(stand.made()? == 2, "the kernel has made one after the reload");
    Ok(())
}

/// The stop lasts as long as other sessions do.
fn a_stop_resets_no_sender_that_is_silent(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &["--drain-timeout", "20s"])?;
    stand.learn(false)?;
    let mut other = stand.open(false, 5000)?;
    stand.wait_made(1)?;
    let mut silent = stand.connect(false)?;
    stand.truepeer.signal(Signal::TERM)?;
    stand.truepeer.wait_state("no listener", || stand.connect(false).is_err())?;
    silent.write_all(&header(false, 5001)?)?;
    echo(&mut silent, &[4; 3000])?;
    stand.backend.wait_for_log("203.0.113.7:5001 accepted")?;
    echo(&mut other, b"as before")?;
    // The stop waits for it, too.
    drop(other);
    std::thread::sleep(Duration::from_secs(3));
    ensure!(stand.truepeer.is_alive(), "it has ended before its last session: {}", stand.truepeer.log());
    drop(silent);
    let status = stand.truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}");
    let log = stand.truepeer.log();
    ensure!(log.contains("client=203.0.113.7:5001 "), "no line: {log}");
    Ok(())
}

fn a_reload_that_adds_full_says_that_it_waits(bed: &Bed) -> Result<()> {
    let stand = serve(bed, "auto")?;
    stand.configure("full")?;
    stand.reload()?;
    stand
        .truepeer
        .wait_for_log("--splice full: the kernel's programs for it are loaded at the next start")?;
    stand.open(false, 5000)?;
    stand.open(false, 5001)?;
    ensure!(stand.made()? == 0, "the kernel has made one");
    Ok(())
}

/// The limit of open files concerns connections that truepeer accepts.
fn sessions_of_the_kernel_take_no_descriptors(bed: &Bed) -> Result<()> {
    let stand = Stand::make_with(bed, Behaviour::Echo, &[], |program| program.limit("nofile=256:256"))?;
    stand.learn(false)?;
    let mut streams = (0..200).map(|n| stand.open(false, 5000 + n)).collect::<Result<Vec<_>>>()?;
    stand.wait_made(200)?;
    let with_tlvs = sender::v2_with_tlvs(client(false, 6000), "192.0.2.1:443", &[(5, b"unique")])?;
    let mut stream = stand.connect(false)?;
    stream.write_all(&with_tlvs)?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    echo(&mut stream, b"truepeer's own")?;
    streams.iter_mut().try_for_each(|stream| echo(stream, b"the kernel's"))
}

/// As many as there may be. Ports that were left keep their entries for some time.
fn reloads_that_move_all_listeners_have_the_kernel_serve_them(bed: &Bed) -> Result<()> {
    const LISTENERS: u16 = 15;
    let stand = serve(bed, "full")?;
    let file = stand.configure("full")?;
    let text = fs::read_to_string(&file)?;
    let (begin, proxy) = text.split_once("[[proxy]]").context("no proxy")?;
    let others: Vec<&str> = proxy.lines().filter(|line| !line.starts_with("listen")).collect();
    for first in [9000, 9100, 9200] {
        let ports = first..first + LISTENERS;
        let listeners: Vec<String> = ports.clone().map(|port| format!("\"[::]:{port}\"")).collect();
        let table = format!("[[proxy]]\nlisten = [{}]\n{}\n", listeners.join(", "), others.join("\n"));
        fs::write(&file, begin.to_owned() + &table)?;
        stand.reload()?;
        for port in ports {
            stand.truepeer.wait_for_log(&format!("{SERVED} [::]:{port}"))?;
        }
    }
    ensure!(!stand.truepeer.log().contains("as auto"), "{}", stand.truepeer.log());
    Ok(())
}
