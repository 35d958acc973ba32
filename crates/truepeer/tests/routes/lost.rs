//! Rules that were missing for a moment: what their loss has broken ends, and what waited for a route goes
//! on.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, NetNs, Running, Test, Topology, Truepeer, client, tests};

use crate::support::TRUEPEER;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_session_whose_backend_was_reset_while_rules_were_missing_ends,
        a_session_goes_on_when_the_route_to_its_backend_is_back,
    ]
}

fn proxy(bed: &Bed, netns: &NetNs, backend: impl std::fmt::Display) -> Result<Running> {
    Truepeer::proxy(TRUEPEER)
        .listen("0.0.0.0:8443")
        .ipv4(backend)
        .allow("any")
        .args(&["--routes", "auto", "--log-format", "text", "-v", "2"])
        .with(|program| program.in_netns(netns))
        .start(bed)
}

/// Replies of a backend leave for the client's own host meanwhile, which knows nothing of the connection.
fn a_session_whose_backend_was_reset_while_rules_were_missing_ends(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let listener = host.run(|| TcpListener::bind(host.at(false, 8000)))??;
    let truepeer = proxy(bed, &host.netns, host.at(false, 8000))?;
    let begin = |port| -> Result<(TcpStream, TcpStream)> {
        let mut sender = lb.run(|| client::connect(host.at(false, 8443)))??;
        sender.write_all(&client::v2(lb.at(false, port), host.at(false, 8443))?)?;
        sender.write_all(b"question")?;
        let (mut backend, seen) = listener.accept()?;
        ensure!(seen == lb.at(false, port), "{seen}");
        let mut question = [0; 8];
        backend.read_exact(&mut question)?;
        Ok((sender, backend))
    };
    let (mut lost, mut answers) = begin(5000)?;
    let (mut kept, mut silent) = begin(5001)?;
    truepeer.signal(Signal::STOP)?;
    host.ip(&["rule flush protocol 123"])?;
    answers.write_all(b"answer")?;
    match answers.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => bail!("the client's own host was expected to reset: {other:?}"),
    }
    truepeer.signal(Signal::CONT)?;
    truepeer.wait_for_log("truepeer has added them again")?;
    ensure!(client::read_end(&mut lost)? == client::End::Reset);
    silent.write_all(b"answer")?;
    let mut answer = [0; 6];
    kept.read_exact(&mut answer).context("the other session")?;
    ensure!(&answer == b"answer");
    Ok(())
}

fn a_session_goes_on_when_the_route_to_its_backend_is_back(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host", "backend"])?;
    let (lb, host, far) = (line.host("lb"), line.host("host"), line.host("backend"));
    let listener = far.run(|| TcpListener::bind(far.at(false, 8000)))??;
    let truepeer = proxy(bed, &host.netns, far.at(false, 8000))?;
    let address = far.at(false, 8000).ip();
    host.ip(&[&format!("route add unreachable {address}")])?;
    let mut sender = lb.run(|| client::connect(host.at(false, 8443)))??;
    // Stopped, so that the route is back within the time for further attempts on a busy machine, too.
    truepeer.signal(Signal::STOP)?;
    sender.write_all(&client::v2("192.0.2.7:5000", host.at(false, 8443))?)?;
    truepeer.signal(Signal::CONT)?;
    host.ip(&[&format!("route del unreachable {address}")])?;
    let (_, seen) = listener.accept()?;
    ensure!(seen.to_string() == "192.0.2.7:5000", "{seen}");
    Ok(())
}
