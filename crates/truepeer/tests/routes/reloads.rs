//! Reloads, and the marks and rules that replies need.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, device_here, tests};

use crate::support::{TRUEPEER, delivers_both, state};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_listener_that_a_failed_reload_opens_again_keeps_its_mark,
        a_reload_from_manual_to_auto_makes_rules_and_marks_connections,
    ]
}

/// Only the mark brings these backends' replies back.
const MARKED: &str = r#"
confine = "off"
[log]
format = "text"
[[proxy]]
listen = ["127.0.0.1:8443"]
ipv4 = "10.9.0.1:80"
ipv6 = "[fd00:9::1]:80"
routes = "auto"
"#;

fn serve(bed: &Bed, file: &str) -> Result<Running> {
    bed.write("truepeer.toml", file)?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_listening("127.0.0.1:8443")?;
    Ok(truepeer)
}

fn reload(bed: &Bed, truepeer: &Running, file: &str, says: &str) -> Result<()> {
    bed.write("truepeer.toml", file)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log(says)
}

/// Another program listens within the new address.
fn a_listener_that_a_failed_reload_opens_again_keeps_its_mark(bed: &Bed) -> Result<()> {
    device_here()?;
    let _backend = Behaviour::Who.start(bed, &["10.9.0.1:80", "[fd00:9::1]:80"])?;
    let _other = TcpListener::bind("127.0.0.2:8443")?;
    let truepeer = serve(bed, MARKED)?;
    delivers_both("127.0.0.1:8443")?;
    let wider = MARKED.replace("127.0.0.1:8443", "0.0.0.0:8443");
    reload(bed, &truepeer, &wider, "not reloaded, everything stays as it was: can't listen on 0.0.0.0:8443")?;
    delivers_both("127.0.0.1:8443")
}

fn a_reload_from_manual_to_auto_makes_rules_and_marks_connections(bed: &Bed) -> Result<()> {
    device_here()?;
    let before = state(bed)?;
    let _backend = Behaviour::Who.start(bed, &["10.9.0.1:80", "[fd00:9::1]:80"])?;
    let truepeer = serve(bed, &MARKED.replace("\"auto\"", "\"manual\""))?;
    ensure!(state(bed)? == before, "changed:\n{}", state(bed)?);
    reload(bed, &truepeer, MARKED, "reloaded: new sessions of listener 127.0.0.1:8443 have new mark")?;
    delivers_both("127.0.0.1:8443")?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}
