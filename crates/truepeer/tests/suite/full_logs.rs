//! The disk that the log is on is full for a while.

use std::fs;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, Program, Test};

use crate::faults::Load;
use crate::stand::{Stand, proxy};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("a_disk_that_is_full_loses_lines_of_the_log_only", disk_is_full)]
}

/// The size of the disk, in bytes: many times what the log needs before it is filled.
const DISK: usize = 1 << 20;
/// Sessions while the disk is full. Each writes a line at least.
const SESSIONS: u64 = 1000;
/// Lines that must be lost. A page of the log may still take some.
const LOST: u64 = SESSIONS / 2;

/// Sessions go on. When there is room again, the log goes on in a new line with how many are missing.
fn disk_is_full(bed: &Bed) -> anyhow::Result<()> {
    let disk = bed.dir().join("disk");
    fs::create_dir(&disk)?;
    Program::new("mount").args(["-t", "tmpfs", "-o", &format!("size={DISK}"), "none"]).arg(&disk).run(bed)?;
    let (log, ballast) = (disk.join("log"), disk.join("ballast"));
    let command = format!("exec \"$@\" 2>>{}", log.display());
    let truepeer = proxy().with(|program| program.launched_by("/bin/bash", &["-c", &command, "truepeer"]));
    let Stand { truepeer, backend: _backend } = Stand::behind(bed, Behaviour::Account, &truepeer)?;

    let load = Load::during(bed, |load| {
        let filled = fs::write(&ballast, vec![0_u8; DISK]);
        ensure!(filled.is_err_and(|error| error.kind() == std::io::ErrorKind::StorageFull));
        let full = fs::metadata(&log)?.len();
        // Each time for 20.
        for _ in 0..SESSIONS / 20 {
            load.wait_for_more()?;
        }
        let grown = fs::metadata(&log)?.len() - full;
        ensure!(grown <= 4096, "the disk was not full: {grown} bytes more");
        fs::remove_file(&ballast)?;
        load.wait_for_more()
    })?;
    load.none_failed()?;

    let text = fs::read_to_string(&log)?;
    let (_, told) =
        text.split_once("lines of the log were lost: the disk was full lines_lost=").unwrap_or_default();
    let lost = told.lines().next().and_then(|number| number.parse::<u64>().ok());
    ensure!(lost.is_some_and(|lost| lost >= LOST), "{lost:?}: {}", &text[text.len().saturating_sub(2000)..]);
    // Each line begins with the time; the last one before the gap may lack the rest.
    let mixed = text.lines().find(|line| !line.starts_with("20") || line.matches('Z').count() == 0);
    ensure!(mixed.is_none(), "not a line of its own: {mixed:?}");

    truepeer.signal(Signal::TERM)?;
    let status = truepeer.wait_end()?;
    ensure!(status.success(), "{status}");
    Ok(())
}
