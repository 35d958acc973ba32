//! Rules that were missing for a moment: what their loss has broken ends, and what waited for a route goes
//! on.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Host, Program, Running, Test, Topology, Truepeer, client, tests};

use crate::support::TRUEPEER;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_session_whose_backend_was_reset_while_rules_were_missing_ends,
        sessions_of_two_instances_end_after_rules_were_missing,
        a_session_goes_on_when_the_route_to_its_backend_is_back,
    ]
}

fn proxy(bed: &Bed, host: &Host, backend: SocketAddr, options: &[&str]) -> Result<Running> {
    proxy_at(bed, host, host.at(false, 8443), backend, options)
}

fn proxy_at(
    bed: &Bed,
    host: &Host,
    at: SocketAddr,
    backend: SocketAddr,
    options: &[&str],
) -> Result<Running> {
    Truepeer::proxy(TRUEPEER)
        .listen(at)
        .ipv4(backend)
        .allow("any")
        .args(&["--routes", "auto", "--log-format", "text", "-v", "2"])
        .args(options)
        .with(|program| program.in_netns(&host.netns))
        .start(bed)
}

/// Replies of a backend leave for the client's own host meanwhile, which knows nothing of the connection.
fn a_session_whose_backend_was_reset_while_rules_were_missing_ends(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let listener = host.run(|| TcpListener::bind(host.at(false, 8000)))??;
    let truepeer = proxy(bed, host, host.at(false, 8000), &[])?;
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
    answer_is_reset(&mut answers)?;
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
    let admin = bed.dir().join("admin").display().to_string();
    let _truepeer = proxy(bed, host, far.at(false, 8000), &["--connect-timeout", "60s", "--admin", &admin])?;
    let address = far.at(false, 8000).ip();
    host.ip(&[&format!("route add unreachable {address}")])?;
    let mut sender = lb.run(|| client::connect(host.at(false, 8443)))??;
    sender.write_all(&client::v2("192.0.2.7:5000", host.at(false, 8443))?)?;
    let sessions = || Program::new(TRUEPEER).args(["sessions", "--admin", &admin]).run(bed);
    bed.wait_for("a session without a route", || sessions().is_ok_and(|list| list.contains(" connecting ")))?;
    host.ip(&[&format!("route del unreachable {address}")])?;
    let (_, seen) = listener.accept()?;
    ensure!(seen.to_string() == "192.0.2.7:5000", "{seen}");
    Ok(())
}

/// One of them puts the rules back, for both.
fn sessions_of_two_instances_end_after_rules_were_missing(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let listener = host.run(|| TcpListener::bind(host.at(false, 8000)))??;
    let (first, second) = (host.at(false, 8443), host.at(false, 8444));
    let truepeers = [first, second]
        .map(|at| proxy_at(bed, host, at, host.at(false, 8000), &[]).map(|truepeer| (at, truepeer)));
    let truepeers = truepeers.into_iter().collect::<Result<Vec<_>>>()?;
    let mut begun = Vec::new();
    for (at, _) in &truepeers {
        let client = lb.at(false, at.port() - 3000);
        let mut sender = lb.run(|| client::connect(at))??;
        sender.write_all(&client::v2(client, at)?)?;
        let (backend, seen) = listener.accept()?;
        ensure!(seen == client, "{seen}");
        begun.push((sender, backend));
    }
    truepeers.iter().try_for_each(|(_, truepeer)| truepeer.signal(Signal::STOP))?;
    host.ip(&["rule flush protocol 123"])?;
    for (_, backend) in &mut begun {
        answer_is_reset(backend)?;
    }
    for (_, truepeer) in &truepeers {
        truepeer.signal(Signal::CONT)?;
    }
    for (sender, _) in &mut begun {
        ensure!(client::read_end(sender)? == client::End::Reset);
    }
    Ok(())
}

/// The client's own host knows nothing of the connection.
fn answer_is_reset(backend: &mut TcpStream) -> Result<()> {
    backend.write_all(b"answer")?;
    match backend.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => bail!("the client's own host was expected to reset: {other:?}"),
    }
}
