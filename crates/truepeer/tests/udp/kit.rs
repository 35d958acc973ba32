//! Shared by the tests of UDP: the testbed's datagrams, `truepeer proxy`, and its counters.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
pub(crate) use truepeer_testbed::datagrams::{
    Backend, ask, hears_nothing, receive, send, sender_towards, socket, spp, v2, v2_with_tlvs,
};
use truepeer_testbed::{Bed, Running, Truepeer, wait_for};

pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");

/// truepeer's listening addresses and the backends, by the client's family.
pub(crate) const LISTENERS: [&str; 2] = ["127.0.0.1:5300", "[::1]:5300"];
pub(crate) const BACKENDS: [&str; 2] = ["127.0.0.1:53", "[::1]:53"];
/// The clients in headers: no addresses of this machine.
pub(crate) const CLIENTS: [&str; 2] = ["192.0.2.7:5000", "[2001:db8::7]:5000"];
/// The destinations in headers.
pub(crate) const DESTINATIONS: [&str; 2] = ["198.51.100.1:53", "[2001:db8:1::1]:53"];

/// `truepeer proxy -p udp`, not started yet.
pub(crate) fn proxy(options: &str) -> Truepeer {
    let options: Vec<&str> = options.split_whitespace().collect();
    Truepeer::proxy(TRUEPEER).args(&["-p", "udp"]).args(&options)
}

/// Starts it and waits until it listens on each of `listeners` with the sockets of all workers. Otherwise a
/// client's second datagram could reach another worker than its first.
pub(crate) fn start(bed: &Bed, truepeer: Truepeer, listeners: &[&str]) -> Result<Running> {
    let truepeer = listeners.iter().fold(truepeer, |truepeer, at| truepeer.option("-l", at));
    let running = truepeer.start_unready(bed)?;
    for at in listeners {
        running.wait_for_log(&format!("listening on {at}"))?;
    }
    Ok(running)
}

/// On [`LISTENERS`], for backends on [`BACKENDS`].
pub(crate) fn start_proxy(bed: &Bed, options: &str) -> Result<Running> {
    start(bed, proxy(options).ipv4(BACKENDS[0]).ipv6(BACKENDS[1]), &LISTENERS)
}

/// The current value of a counter, or of a reason for refusals; 0 if it was never counted.
pub(crate) fn counted(truepeer: &Running, name: &str) -> Result<u64> {
    let reports = || truepeer.log().lines().filter(|line| line.contains("counters:")).count();
    let before = reports();
    truepeer.signal(Signal::USR1)?;
    truepeer.wait_state("its counters", || reports() > before)?;
    let log = truepeer.log();
    let line = log.lines().rfind(|line| line.contains("counters:")).unwrap_or_default();
    let words = line.split([' ', '"']);
    let value = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).next();
    value.unwrap_or("0").parse().with_context(|| line.to_owned())
}

/// Waits until a counter has this value.
pub(crate) fn wait_counted(truepeer: &Running, name: &str, value: u64) -> Result<()> {
    let mut last = 0;
    let outcome = wait_for(&format!("{name}={value}"), || {
        std::thread::sleep(Duration::from_millis(20)); // each check adds a line to its log
        last = counted(truepeer, name).unwrap_or_default();
        last == value
    });
    outcome.with_context(|| format!("{name} was {last} at last"))
}
