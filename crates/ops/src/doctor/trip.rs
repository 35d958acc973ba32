//! A real connection to a server's port, with a header where this host may send one.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use truepeer_bpf::RulesInForce;
use truepeer_routes::item::IpFamily;

use super::owners::Owner;
use super::probe;
use super::report::{Check, Report};

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// `rules`: of what is attached there.
pub(super) fn examine(
    port: u16,
    sockets: &[(SocketAddr, Option<Owner>)],
    rules: Option<&RulesInForce>,
    timeout: Duration,
    report: &mut Report,
) {
    let mut tried: Vec<SocketAddr> = sockets.iter().map(|(address, _)| reachable(*address)).collect();
    tried.dedup();
    for address in tried {
        let is_sender = rules.is_some_and(|rules| is_sender(rules, address.ip()));
        report.add(if is_sender {
            with_header(address, port, timeout)
        } else {
            plainly(address, rules.is_some(), timeout)
        });
    }
}

/// Whether a connection from this host to itself may bring a header: its own address is the sender's then.
fn is_sender(rules: &RulesInForce, ip: IpAddr) -> bool {
    let longest = rules
        .senders
        .iter()
        .filter(|(prefix, _)| prefix.contains(&ip))
        .max_by_key(|(prefix, _)| prefix.prefix_len());
    longest.is_some_and(|(_, rule)| rule.is_some())
}

fn plainly(address: SocketAddr, is_attached: bool, timeout: Duration) -> Check {
    let tried = format!("a connection to {address}");
    match probe::connect(address, timeout) {
        Ok(_) if is_attached => Check::ok("trip", tried)
            .found("answered; it brought no header, since --allow does not list this host"),
        Ok(_) => Check::ok("trip", tried).found("answered"),
        Err(error) => Check::fail("trip", tried, error.to_string())
            .mend(format!("ss -ltnp 'sport = :{}'", address.port())),
    }
}

/// The programs must take the header off, and tell the server the client that it names.
fn with_header(address: SocketAddr, port: u16, timeout: Duration) -> Check {
    let client = SocketAddr::new(IpFamily::of(address.ip()).example_client(), 50_000);
    let tried = format!("a connection to {address} whose header names {}", client.ip());
    match counted(address, client, port, timeout) {
        Ok(Outcome::Named) => Check::ok("trip", tried)
            .found(format!("the header is taken off, and the server is told {}", client.ip())),
        Ok(Outcome::Not(why)) => Check::fail("trip", tried, why).mend("truepeer attach status"),
        Err(error) => Check::fail("trip", tried, error.to_string()).mend("truepeer attach status"),
    }
}

enum Outcome {
    Named,
    /// A counter's meaning, or silence.
    Not(String),
}

/// Counters of connections that the server takes for the sender's.
const UNNAMED: [&str; 2] = ["client_not_showable", "outside_cgroup"];
/// Counts headers of the version that is sent here.
const TAKEN_OFF: &str = "header_v1";

fn counted(address: SocketAddr, client: SocketAddr, port: u16, timeout: Duration) -> anyhow::Result<Outcome> {
    let before = counters(port)?;
    let mut stream = probe::stream(address, timeout)?;
    // PROXY 2.1.
    let family = if address.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (client.ip(), address.ip());
    write!(stream, "PROXY {family} {from} {to} {} {}\r\n", client.port(), address.port())?;
    let began = Instant::now();
    loop {
        let now = counters(port)?;
        let has_grown = |name: &str| now.get(name).map(|one| one.0) > before.get(name).map(|one| one.0);
        let bad = now
            .iter()
            .find(|(name, _)| (name.starts_with("refused_") || UNNAMED.contains(name)) && has_grown(name));
        if let Some((name, (_, meaning))) = bad {
            return Ok(Outcome::Not(format!("{meaning} ({name})")));
        }
        if has_grown(TAKEN_OFF) {
            return Ok(Outcome::Named);
        }
        if began.elapsed() > timeout {
            return Ok(Outcome::Not("the header was not taken off in time".to_owned()));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The port's counters, with their meanings, by name.
fn counters(port: u16) -> anyhow::Result<BTreeMap<&'static str, (u64, &'static str)>> {
    let attached = truepeer_attach::attached_here()?.context("it was detached meanwhile")?;
    let port = attached.port(port, false).context("it was detached meanwhile")?;
    Ok(port.counters.iter().map(|(counter, count)| (counter.name, (*count, counter.meaning))).collect())
}

/// The loopback address of a socket's family, where it is bound to every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
