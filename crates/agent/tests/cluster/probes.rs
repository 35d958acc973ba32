//! The kubelet's probes, and who may read metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::Test;
use crate::agent::Agent;
use crate::bed::Bed;
use crate::wait::until;

pub(crate) const TESTS: &[Test] = &[
    ("probes_are_answered_while_the_metrics_are_flooded", probes_are_answered_while_the_metrics_are_flooded),
    ("metrics_need_the_token", metrics_need_the_token),
    ("metrics_can_be_turned_off", metrics_can_be_turned_off),
];

fn connected(agent: &Agent) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&agent.address(), Duration::from_secs(3))
}

/// More than there are places for.
const FLOOD: usize = 64;

fn probes_are_answered_while_the_metrics_are_flooded(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    // Idle, then with a request: either takes a place.
    for asks in [false, true] {
        let flood = (0..FLOOD).map(|_| connected(&agent));
        let mut flood = flood.collect::<Result<Vec<_>, _>>()?;
        if asks {
            let ask = |stream: &mut TcpStream| write!(stream, "GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n");
            flood.iter_mut().try_for_each(ask)?;
        }
        for question in ["live", "ready"] {
            let begin = Instant::now();
            let (is_yes, said) = agent.probe(question)?;
            // The kubelet waits a second.
            ensure!(is_yes && said.is_empty(), "{question}: {said}");
            ensure!(begin.elapsed() < Duration::from_secs(1), "{question} took {:?}", begin.elapsed());
        }
    }
    // A place is taken for one request, or a moment.
    until("the metrics", || Ok((agent.page("/metrics")?.0 == 200).then_some(())))
}

fn metrics_need_the_token(bed: &Bed) -> Result<()> {
    let file = bed.cluster.directory().join("metrics-token");
    std::fs::write(&file, "secret\n")?;
    let agent = Agent::start(bed, &["--metrics-token", &file.display().to_string()])?;
    ensure!(agent.page("/metrics")?.0 == 401, "{:?}", agent.page("/metrics"));
    let mut stream = connected(&agent)?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("truepeer_agent_build"), "{answer}");
    Ok(())
}

fn metrics_can_be_turned_off(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &["--listen", "none"])?;
    ensure!(connected(&agent).is_err(), "something listens at {}", agent.address());
    ensure!(agent.probe("live")?.0);
    Ok(())
}
