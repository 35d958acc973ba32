//! Shared by the tests of routes.

use std::fs;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{Bed, Program, Running, Truepeer, client};

pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
/// The client in every header: no address of this machine.
pub(crate) const CLIENT_4: &str = "192.0.2.7:5000";
pub(crate) const CLIENT_6: &str = "[2001:db8::7]:5000";

/// `truepeer routes …`, to its end.
pub(crate) fn routes(bed: &Bed, args: &str) -> Result<String> {
    Program::new(TRUEPEER).arg("routes").args(args.split_whitespace()).run(bed)
}

/// `truepeer proxy` on a port of loopback, listening.
pub(crate) fn proxy(bed: &Bed, port: u16, options: &str) -> Result<Running> {
    let options: Vec<&str> = options.split_whitespace().collect();
    Truepeer::proxy(TRUEPEER).listen(format!("127.0.0.1:{port}")).args(&options).start(bed)
}

/// Everything that could have changed: rules, routes in all tables, and the switches.
pub(crate) fn state(bed: &Bed) -> Result<String> {
    let ip = |words: &str| Program::new("ip").args(words.split_whitespace()).run(bed);
    let mut state = String::new();
    for words in ["rule", "-6 rule", "route show table all", "-6 route show table all"] {
        state += &ip(words)?;
    }
    for switch in ["ipv4/tcp_fwmark_accept", "ipv4/fwmark_reflect", "ipv6/fwmark_reflect"] {
        state += &format!("{switch}={}", switch_value(switch)?);
    }
    Ok(state)
}

/// A switch of this thread's network namespace.
pub(crate) fn switch_value(switch: &str) -> Result<String> {
    let path = format!("/proc/sys/net/{switch}");
    fs::read_to_string(&path).context(path)
}

/// Sends a header for `claimed` and returns the client that the backend saw.
pub(crate) fn seen_through(listener: &str, claimed: &str, destination: &str) -> Result<String> {
    let mut stream = client::connect(listener)?;
    let header = client::v2(claimed, destination)?;
    client::ask(&mut stream, &header).map(|answer| answer.trim().to_owned())
}

/// The same, and checks that it is the claimed client.
pub(crate) fn delivers(listener: &str, claimed: &str, destination: &str) -> Result<()> {
    let seen = seen_through(listener, claimed, destination)?;
    ensure!(seen == claimed, "the backend saw {seen:?} instead of {claimed}");
    Ok(())
}

/// Both families through one listener.
pub(crate) fn delivers_both(listener: &str) -> Result<()> {
    delivers(listener, CLIENT_4, "198.51.100.1:80")?;
    delivers(listener, CLIENT_6, "[2001:db8:1::1]:80")
}
