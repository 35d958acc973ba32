//! HTTP/2 clients that send expensive frames: their connections are ended, and other clients are unaffected.

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::kit::{curl, https, origin};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![floods_of_frames_are_ended_and_counted, a_flood_that_reads_nothing_is_ended_too];
    all.into_iter().map(|test| test.needs_program("python3")).collect()
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";

fn flood(name: &str) -> Program {
    Program::new("python3").args(["-c", include_str!("programs/flood.py"), name])
}

/// Waits until this many have been refused for this reason.
fn counted(truepeer: &Running, expected: usize) -> anyhow::Result<()> {
    let said = |log: &str, reason: &str| {
        let counts =
            log.split([' ', '"']).filter_map(|word| word.strip_prefix(reason)?.parse::<usize>().ok());
        counts.max().unwrap_or_default()
    };
    // h2 itself counts streams that are cancelled before they were processed.
    truepeer.wait_state(&format!("{expected} refusals"), || {
        let (is_asked, log) = (truepeer.signal(Signal::USR1).is_ok(), truepeer.log());
        is_asked && said(&log, "http2_excess=") + said(&log, "http2_rapid_reset=") == expected
    })
}

/// Each has an open request, which keeps its connection alive.
fn floods_of_frames_are_ended_and_counted(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    for name in ["rapid-reset", "continuation", "ping", "settings", "empty-data", "window-update", "priority"]
    {
        let flooding = flood(name).start(bed)?;
        while flooding.is_alive() {
            ensure!(curl(&["--http2", "https://127.0.0.1/3"]).run(bed)? == "xxx");
        }
        let status = flooding.wait_end()?;
        ensure!(status.success(), "{name}: {}; {}", flooding.log(), truepeer.log());
        // ENHANCE_YOUR_CALM (RFC 9113 section 7).
        ensure!(flooding.stdout().trim() == format!("{name} goaway 11"), "{}", flooding.log());
    }
    counted(&truepeer, 7)?;
    truepeer.wait_for_log("the client sends too many HTTP/2 frames that carry no request")
}

/// Its pings can't be answered, and it gets no more time than others.
fn a_flood_that_reads_nothing_is_ended_too(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    let deaf = include_str!("programs/flood.py").replace("    read()\n    if not", "    if not");
    let flooding = Program::new("python3").args(["-c", &deaf, "settings"]).start(bed)?;
    ensure!(!flooding.wait_end()?.success(), "{}", flooding.log());
    counted(&truepeer, 1)?;
    ensure!(curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx");
    Ok(())
}
