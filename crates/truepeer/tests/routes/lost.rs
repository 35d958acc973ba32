//! Rules that were missing for a moment: what their loss has broken ends, and what waited for a route goes
//! on.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{
    Bed, Behaviour, Host, Program, Running, Test, Topology, Truepeer, client, dropped_packets,
    kernel_counter, tests,
};

use crate::support::TRUEPEER;

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_session_whose_backend_was_reset_while_rules_were_missing_ends,
        sessions_of_two_instances_end_after_rules_were_missing,
        a_session_goes_on_when_the_route_to_its_backend_is_back,
    ];
    for (name, splice) in [
        ("no_session_waits_in_vain_while_rules_are_flushed", "off"),
        ("no_session_waits_in_vain_while_rules_are_flushed_and_sessions_leave", "auto"),
    ] {
        all.push(Test::new(name, move |bed: &Bed| while_rules_are_flushed(bed, splice)));
    }
    all
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
    // As if there was no route at all, which the kernel counts.
    host.ip(&[&format!("route replace throw {address}")])?;
    let before = host.run(|| kernel_counter("OutNoRoutes"))??;
    bed.wait_for("further attempts, four a second", || {
        host.run(|| kernel_counter("OutNoRoutes")).is_ok_and(|now| now.is_ok_and(|now| now >= before + 20))
    })?;
    host.ip(&[&format!("route del throw {address}")])?;
    listener.set_nonblocking(true)?;
    let mut seen = None;
    bed.wait_for("a connection", || {
        seen = listener.accept().ok().map(|(_, seen)| seen.to_string());
        seen.is_some()
    })?;
    ensure!(seen.as_deref() == Some("192.0.2.7:5000"), "{seen:?}");
    Ok(())
}

const FLUSHES: usize = 8;
const BETWEEN_FLUSHES: Duration = Duration::from_millis(1500);
const SENDERS: usize = 16;

/// Sessions begin all the time. Those whose backend a flush has reset may end, but none waits until its time
/// to connect is over. A sender may wait if truepeer has reset it, and a busy machine has dropped that reset.
fn while_rules_are_flushed(bed: &Bed, splice: &str) -> Result<()> {
    mount_bpf_in_place()?;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let backend = host.run(|| Behaviour::Echo.start(bed, &[host.at(false, 8000)]))??;
    let options = ["--splice", splice, "--splice-after", "0", "--connect-timeout", "30s"];
    let truepeer = proxy(bed, host, host.at(false, 8000), &options)?;
    let (port, served) = (AtomicU16::new(10_000), AtomicUsize::new(0));
    let (is_over, dropped) = (AtomicBool::new(false), dropped_packets()?);
    let was_reset = |client: SocketAddr| -> Result<bool> {
        let (log, client) = (truepeer.log(), format!("client={client} "));
        let mut ends = log.lines().filter(|line| line.contains(&client));
        Ok(ends.any(|line| line.contains("close=\"reset_by_backend\"")) && dropped_packets()? > dropped)
    };
    let one_session = || -> Result<()> {
        let client = lb.at(false, port.fetch_add(1, Relaxed));
        let mut stream = lb.run(|| client::connect(host.at(false, 8443)))??;
        // Longer than the time to connect.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(&client::v2(client, host.at(false, 8443))?)?;
        match echoes(&mut stream) {
            Ok(()) => _ = served.fetch_add(1, Relaxed),
            Err(error) if is_broken(&error) => {}
            Err(_) if was_reset(client)? => {}
            Err(error) => {
                let log = backend.log();
                let lines = log.lines().filter(|line| line.contains(&client.to_string())).collect::<Vec<_>>();
                return Err(error).with_context(|| format!("{client} was not served: {lines:?}"));
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let sender = || -> Result<()> {
            while !is_over.load(Relaxed) {
                one_session()?;
            }
            Ok(())
        };
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(sender)).collect();
        let flushed = (0..FLUSHES).try_for_each(|_| {
            thread::sleep(BETWEEN_FLUSHES);
            host.ip(&["rule flush protocol 123"])
        });
        let so_far = served.load(Relaxed);
        let again = bed.wait_for("sessions after the last flush", || served.load(Relaxed) > so_far + SENDERS);
        is_over.store(true, Relaxed);
        let join = |sender: thread::ScopedJoinHandle<'_, Result<()>>| {
            sender.join().map_err(|_| anyhow::anyhow!("a panic"))?
        };
        senders.into_iter().try_for_each(join)?;
        flushed.and(again)
    })?;
    let log = truepeer.log();
    let (flushes, late) = ("truepeer has added them again", "close=\"connect_timeout\"");
    ensure!(log.contains(flushes), "no rules were missed: {log}");
    let late = log.lines().filter(|line| line.contains(late)).collect::<Vec<_>>();
    ensure!(late.is_empty(), "{} of {}: {late:#?}", late.len(), port.load(Relaxed) - 10_000);
    if splice == "auto" {
        ensure!(log.contains("has left user space"), "no session has left");
    }
    Ok(())
}

fn echoes(stream: &mut TcpStream) -> Result<()> {
    for _ in 0..20 {
        let mut back = [0; 3000];
        stream.write_all(&[7; 3000])?;
        stream.read_exact(&mut back)?;
        ensure!(back == [7; 3000], "other bytes came back");
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "more bytes came back");
    Ok(())
}

/// Its backend was reset.
fn is_broken(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
    kind.is_some_and(|kind| ends.contains(&kind))
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
