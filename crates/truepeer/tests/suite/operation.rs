//! What an operator does to a truepeer that runs: lists edited and read again, and an end in order.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
use rustix::process::Signal;
use truepeer_testbed::client::End;
use truepeer_testbed::{Bed, Behaviour, Program, Test, Truepeer, client, tests};

use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, Stand, TRUEPEER, header_of, open_as, proxy,
    refused, refused_from,
};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        lists_are_read_again_and_open_sessions_go_on,
        a_list_with_an_error_leaves_everything_as_it_was,
        a_name_that_leads_elsewhere_now_is_resolved_again,
        sighup_with_nothing_to_change_ends_nothing,
        sessions_go_on_after_sigterm_until_they_end,
        a_second_sigterm_ends_sessions_at_once,
        sessions_that_outlast_the_drain_timeout_are_reset,
        without_a_drain_timeout_sessions_end_at_once,
        a_drop_in_ends_at_once,
        a_log_that_nobody_can_write_stops_nothing,
        a_log_that_nobody_reads_stops_nothing,
    ]
}

/// A session through the stand's echo, that works.
fn session(client: &str) -> anyhow::Result<TcpStream> {
    let mut session = open_as(client.parse()?)?;
    goes_on(&mut session)?;
    Ok(session)
}

fn goes_on(session: &mut TcpStream) -> anyhow::Result<()> {
    session.write_all(b"x")?;
    session.read_exact(&mut [0])?;
    Ok(())
}

fn is_refused(client: &str) -> anyhow::Result<bool> {
    refused(&header_of(client.parse()?)?).map(|_| true)
}

fn lists_are_read_again_and_open_sessions_go_on(bed: &Bed) -> anyhow::Result<()> {
    bed.write("allow", "127.0.0.0/8\n")?;
    bed.write("deny", "# nobody\n198.51.100.0/24\n")?;
    let files = ["--allow", "./allow", "--deny-clients", "./deny"];
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Echo, &files)?;
    let mut before = session(CLIENT_V4)?;

    bed.write("deny", "203.0.113.7\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded: new sessions of listener 127.0.0.1:8443 have new lists")?;
    truepeer.wait_for_log("reloaded: new sessions of listener [::1]:8443 have new lists")?;
    ensure!(is_refused(CLIENT_V4)?);
    session("203.0.113.8:5000")?;
    goes_on(&mut before)?;

    bed.write("allow", "192.0.2.1\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_state("the second reload", || {
        truepeer.log().matches("127.0.0.1:8443 have new lists").count() == 2
    })?;
    ensure!(is_refused("203.0.113.8:5001")?);
    goes_on(&mut before)
}

fn a_list_with_an_error_leaves_everything_as_it_was(bed: &Bed) -> anyhow::Result<()> {
    bed.write("allow", "127.0.0.0/8\n")?;
    bed.write("deny", "198.51.100.0/24\n")?;
    let files = ["--allow", "./allow", "--deny-clients", "./deny"];
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Echo, &files)?;
    let mut before = session(CLIENT_V4)?;
    let says = |said: &str| {
        truepeer.signal(Signal::HUP)?;
        truepeer.wait_for_log(&format!("not reloaded, everything stays as it was: {said}"))
    };
    // The other list would refuse everybody.
    bed.write("allow", "192.0.2.1\n")?;
    bed.write("deny", "198.51.100.0/24\n10.0.0.0/40\n")?;
    says("--deny-clients ./deny: line 2: \"10.0.0.0/40\" is not a prefix")?;
    std::fs::remove_file(bed.dir().join("deny"))?;
    says("--deny-clients ./deny: can't read the file: No such file or directory")?;
    session("203.0.113.7:5001")?;
    goes_on(&mut before)?;

    bed.write("deny", "198.51.100.0/24\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("127.0.0.1:8443 have new lists")?;
    ensure!(is_refused("203.0.113.7:5002")?);
    goes_on(&mut before)
}

/// By this bed's own /etc/hosts.
fn a_name_that_leads_elsewhere_now_is_resolved_again(bed: &Bed) -> anyhow::Result<()> {
    let _first = Behaviour::Who.start(bed, &["127.0.0.2:8000"])?;
    let echo = Behaviour::Echo.start(bed, &["127.0.0.3:8000"])?;
    let hosts = bed.write("hosts", "127.0.0.2 backend.test\n")?;
    let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    let options = ["proxy", "--routes", "auto", "-l", DOOR_V4, "-4", "backend.test:8000", "-6", BACKEND_V6];
    let truepeer = Program::new("unshare").args(["-m", "sh", "-c", &script, "sh", TRUEPEER]).args(options);
    let truepeer = truepeer.args(["--log-format", "text"]).start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    let seen = client::ask(&mut open_as(CLIENT_V4.parse()?)?, b"")?;
    ensure!(seen.trim() == CLIENT_V4, "{seen}");
    bed.write("hosts", "127.0.0.3 backend.test\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("new sessions of listener 127.0.0.1:8443 have new backends' addresses")?;
    let echoed = client::ask(&mut open_as("203.0.113.8:5000".parse()?)?, b"echo")?;
    ensure!(echoed == "echo", "{echoed}; {}", echo.log());
    Ok(())
}

fn sighup_with_nothing_to_change_ends_nothing(bed: &Bed) -> anyhow::Result<()> {
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Echo, &[])?;
    let mut before = session(CLIENT_V6)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded: nothing has changed")?;
    goes_on(&mut before)?;
    session(CLIENT_V4).map(|_| ())
}

pub(crate) fn rules(bed: &Bed) -> anyhow::Result<bool> {
    Ok(Program::new("ip").args(["rule"]).run(bed)?.contains("lookup 123"))
}

fn sessions_go_on_after_sigterm_until_they_end(bed: &Bed) -> anyhow::Result<()> {
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Echo, &[])?;
    let mut sessions = [session(CLIENT_V4)?, session(CLIENT_V6)?, session("203.0.113.9:5000")?];
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_for_log("sessions open may go on for 30 s")?;
    let is_told = truepeer.log().contains("stopping: nothing new is taken, 3 sessions open");
    ensure!(is_told, "{}", truepeer.log());
    truepeer.wait_state("the listeners to close", || {
        client::connect(DOOR_V4).is_err_and(|error| format!("{error:#}").contains("refused"))
    })?;
    sessions.iter_mut().try_for_each(goes_on)?;
    let [mut last, others @ ..] = sessions;
    drop(others);
    ensure!(truepeer.is_alive() && rules(bed)?, "its rules went before its last session");
    goes_on(&mut last)?;
    drop(last);
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    ensure!(truepeer.log().contains("stopping with 0 sessions open"), "{}", truepeer.log());
    ensure!(!rules(bed)?, "its rules are left");
    Ok(())
}

/// How the session ended, and how long that took.
fn end(session: &mut TcpStream) -> anyhow::Result<(End, Duration)> {
    let begun = Instant::now();
    Ok((client::read_end(session)?, begun.elapsed()))
}

fn a_second_sigterm_ends_sessions_at_once(bed: &Bed) -> anyhow::Result<()> {
    let Stand { truepeer, backend: _backend } =
        Stand::with_options(bed, Behaviour::Echo, &["--drain-timeout", "10m"])?;
    let mut open = session(CLIENT_V4)?;
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_for_log("stopping: ")?;
    goes_on(&mut open)?;
    truepeer.signal(Signal::TERM)?;
    let (end, waited) = end(&mut open)?;
    ensure!(end == End::Reset, "{end:?} after {waited:?}");
    ensure!(truepeer.wait_end()?.code() == Some(0) && !rules(bed)?);
    Ok(())
}

fn sessions_that_outlast_the_drain_timeout_are_reset(bed: &Bed) -> anyhow::Result<()> {
    let Stand { truepeer, backend: _backend } =
        Stand::with_options(bed, Behaviour::Echo, &["--drain-timeout", "3s"])?;
    let mut open = session(CLIENT_V4)?;
    let asked = Instant::now();
    truepeer.signal(Signal::INT)?;
    truepeer.wait_for_log("stopping: ")?;
    goes_on(&mut open)?;
    let (end, _) = end(&mut open)?;
    let waited = asked.elapsed();
    ensure!(end == End::Reset && waited >= Duration::from_secs(3), "{end:?} after {waited:?}");
    ensure!(truepeer.wait_end()?.code() == Some(0) && !rules(bed)?);
    Ok(())
}

fn without_a_drain_timeout_sessions_end_at_once(bed: &Bed) -> anyhow::Result<()> {
    let Stand { truepeer, backend: _backend } =
        Stand::with_options(bed, Behaviour::Echo, &["--drain-timeout", "0"])?;
    ends_at_once(&truepeer)
}

/// As the program does in whose place it stands.
fn a_drop_in_ends_at_once(bed: &Bed) -> anyhow::Result<()> {
    crate::stand::classic_rules(bed)?;
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let program = Program::new(TRUEPEER).args(["--compat", "go-mmproxy", "-l", DOOR_V4]);
    let truepeer = Truepeer::of(program).ipv4(BACKEND_V4).ipv6(BACKEND_V6).start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    ends_at_once(&truepeer)
}

fn ends_at_once(truepeer: &truepeer_testbed::Running) -> anyhow::Result<()> {
    let mut open = session(CLIENT_V4)?;
    truepeer.signal(Signal::TERM)?;
    let (end, waited) = end(&mut open)?;
    // Far less than the default of --drain-timeout, also on a busy machine.
    ensure!(end == End::Reset && waited < Duration::from_secs(25), "{end:?} after {waited:?}");
    ensure!(truepeer.wait_end()?.code() == Some(0));
    Ok(())
}

/// Standard error is a pipe that is full, and nobody reads it: lines are lost, sessions go on. When it is
/// read again, the log goes on with how many lines are missing.
fn a_log_that_nobody_reads_stops_nothing(bed: &Bed) -> anyhow::Result<()> {
    let path = bed.dir().join("log");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)?;
    // Open for reading and writing, so that truepeer's end opens at once and the pipe outlives it.
    let mut log = File::from(open(&path, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())?);
    let command = format!("exec \"$@\" 2>{}", path.display());
    let truepeer = proxy().with(|program| program.launched_by("/bin/bash", &["-c", &command, "truepeer"]));
    let Stand { truepeer, backend: _backend } = Stand::behind(bed, Behaviour::Echo, &truepeer)?;

    let mut before = session(CLIENT_V4)?;
    while log.write(&[b'.'; 4096]).is_ok() {}
    for _ in 0..20 {
        session(CLIENT_V6)?;
    }
    refused_from("127.0.0.9:0", b"no header at all\r\n")?;
    truepeer.signal(Signal::USR1)?;
    goes_on(&mut before)?;

    let mut held = Vec::new();
    // It ends where the pipe is empty (EAGAIN).
    let _ = log.read_to_end(&mut held);
    bed.wait_for("lines again", || {
        let _ = session(CLIENT_V4);
        let mut line = [0; 16384];
        log.read(&mut line).inspect(|&length| held.extend_from_slice(&line[..length])).is_ok()
    })?;
    let text = String::from_utf8_lossy(&held);
    let lost = text.split("lines_lost=").nth(1).and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
    // A line for each session.
    ensure!(lost.is_some_and(|lost| lost >= 20), "{lost:?}: {}", &text[text.len().saturating_sub(2000)..]);

    drop(before);
    truepeer.signal(Signal::TERM)?;
    let status = truepeer.wait_end()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Standard error is a full device, or a pipe whose reader has ended: warnings of refusals and the counters
/// are lost, and sessions go on.
fn a_log_that_nobody_can_write_stops_nothing(bed: &Bed) -> anyhow::Result<()> {
    for log in ["2>/dev/full", "2> >(:)"] {
        let command = format!("exec \"$@\" {log}");
        let truepeer =
            proxy().with(|program| program.launched_by("/bin/bash", &["-c", &command, "truepeer"]));
        let Stand { truepeer, backend: _backend } = Stand::behind(bed, Behaviour::Echo, &truepeer)?;
        let mut before = session(CLIENT_V4)?;
        for sender in 1..=20 {
            refused_from(&format!("127.0.0.{sender}:0"), b"no header at all\r\n")?;
        }
        truepeer.signal(Signal::USR1)?;
        goes_on(&mut before)?;
        session(CLIENT_V6)?;
        truepeer.signal(Signal::TERM)?;
        drop(before);
        let status = truepeer.wait_end()?;
        ensure!(status.success(), "{log}: {status}");
    }
    Ok(())
}
