//! `/metrics` as Prometheus' own parsers read it, and its values beside what the test has counted.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use anyhow::{Context, ensure};
use truepeer_testbed::datagrams::{self, Backend};
use truepeer_testbed::{Bed, Behaviour, Program, Test, client, servers_dir, skip, tests};

use crate::serve::{DNS, GATE, ask_by_udp, session_at};
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, SITE_V4};
use crate::top::serve;

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![metrics_are_what_was_counted_under_load];
    all.push(
        Test::new("promtool_finds_nothing_to_complain_about", promtool_finds_nothing)
            .needs_program("promtool"),
    );
    all
}

const SENDERS: u64 = 4;
const SESSIONS: u64 = 15;
const BYTES: usize = 20_000;
const OPENMETRICS: &str = "Accept: application/openmetrics-text; version=1.0.0";

/// Prints each sample that the client library of Prometheus for Python finds: its name, its labels, its
/// value.
const PARSER: &str = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in ("entry", "protocol"))
        print(f"{sample.name}{{{labels}}} {sample.value}")
"#;

fn scrape(bed: &Bed, accept: &str) -> anyhow::Result<String> {
    let curl = ["-sf", "--unix-socket", "admin.sock", "-H", accept, "http://truepeer/metrics"];
    Program::new("curl").args(curl).run(bed)
}

/// Samples by name and labels, read by the library.
fn samples(bed: &Bed) -> anyhow::Result<BTreeMap<String, f64>> {
    let modules = servers_dir().join("root/usr/lib/python3/dist-packages");
    if !modules.join("prometheus_client").is_dir() {
        return skip("python3-prometheus-client is not unpacked (make servers)");
    }
    let parser = Program::new("python3").args(["-c", PARSER]).env("PYTHONPATH", modules);
    let printed = parser.input(scrape(bed, OPENMETRICS)?).run(bed)?;
    let samples = printed.lines().map(|line| {
        let (name, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        Ok((name.to_owned(), value.parse()?))
    });
    samples.collect()
}

/// Sessions one after the other, with as many bytes there and back each.
fn send(sender: u64) -> anyhow::Result<()> {
    for session in 0..SESSIONS {
        let mut stream = session_at(DOOR_V4, &format!("203.0.113.{sender}:{}", 5000 + session))?;
        let mut bytes = vec![7; BYTES];
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
    }
    Ok(())
}

fn refused(from: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let mut stream: TcpStream = client::connect_from(from, DOOR_V4)?;
    // It may be refused before it has sent anything.
    let _ = stream.write_all(bytes);
    client::read_end(&mut stream)?;
    Ok(())
}

fn metrics_are_what_was_counted_under_load(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let _truepeer = serve(bed, &[])?;
    let senders: Vec<_> = (0..SENDERS).map(|sender| thread::spawn(move || send(sender))).collect();
    for _ in 0..6 {
        refused("127.0.0.9:0", b"")?;
    }
    for _ in 0..4 {
        refused("127.0.0.1:0", b"GET / HTTP/1.1\r\n\r\n")?;
    }
    for client in 0..3 {
        for _ in 0..5 {
            ask_by_udp(&format!("203.0.113.{client}:4000"), b"question")?;
        }
    }
    let stranger = datagrams::sender_towards(GATE)?;
    for _ in 0..2 {
        stranger.send(b"no header")?;
    }
    for sender in senders {
        sender.join().map_err(|_| anyhow::anyhow!("a sender has panicked"))??;
    }
    let mut open = client::connect(DOOR_V4)?;
    open.write_all(&client::v1("203.0.113.99:5000", SITE_V4)?)?;
    open.write_all(b"x")?;
    open.read_exact(&mut [0])?;

    let sessions = SENDERS * SESSIONS;
    let bytes = sessions * (BYTES as u64 + 1) + 1;
    let (tcp, udp) = (format!("listener={DOOR_V4}"), format!("listener={GATE}"));
    let truth = [
        (format!("truepeer_open{{{tcp}}}"), 1),
        (format!("truepeer_open{{{udp}}}"), 3),
        (format!("truepeer_connections_accepted_total{{{tcp}}}"), sessions + 1 + 10),
        (format!("truepeer_connections_refused_total{{{tcp}}}"), 10),
        (format!("truepeer_refusals_total{{{tcp},reason=sender_not_allowed}}"), 6),
        (format!("truepeer_refusals_total{{{tcp},reason=not_proxy}}"), 4),
        (format!("truepeer_headers_total{{{tcp},result=v1}}"), 1),
        (format!("truepeer_headers_total{{{tcp},result=v2}}"), sessions),
        (format!("truepeer_sessions_relayed_total{{{tcp}}}"), sessions + 1),
        (format!("truepeer_bytes_total{{direction=up,{tcp}}}"), bytes),
        (format!("truepeer_bytes_total{{direction=down,{tcp}}}"), bytes),
        (format!("truepeer_header_wait_seconds_count{{{tcp}}}"), sessions + 1),
        (format!("truepeer_backend_connect_seconds_count{{{tcp}}}"), sessions + 1),
        (format!("truepeer_session_length_seconds_count{{{tcp}}}"), sessions),
        (format!("truepeer_session_length_seconds_bucket{{le=+Inf,{tcp}}}"), sessions),
        (format!("truepeer_flows_opened_total{{{udp}}}"), 3),
        (format!("truepeer_datagrams_total{{direction=up,{udp}}}"), 15),
        (format!("truepeer_datagrams_total{{direction=down,{udp}}}"), 15),
        (format!("truepeer_bytes_total{{direction=up,{udp}}}"), 15 * 8),
        (format!("truepeer_datagrams_lost_total{{{udp},reason=refused}}"), 2),
        (format!("truepeer_refusals_total{{reason=not_proxy,{udp}}}"), 2),
        ("truepeer_serving{}".to_owned(), 1),
    ];
    // The last ends are counted a moment later.
    let mut differs = Vec::new();
    let is_true = || -> anyhow::Result<bool> {
        let samples = samples(bed)?;
        #[expect(clippy::cast_precision_loss, reason = "the test's own small numbers")]
        let is_it = |(name, value): &&(String, u64)| samples.get(&sorted(name)) == Some(&(*value as f64));
        differs = truth
            .iter()
            .filter(|one| !is_it(one))
            .map(|(name, _)| (name.clone(), samples.get(&sorted(name)).copied()))
            .collect();
        Ok(differs.is_empty())
    };
    let mut is_true = is_true;
    let mut failed = None;
    let waited = bed.wait_for("the metrics to be true", || match is_true() {
        Ok(is) => is,
        Err(error) => {
            failed = Some(error);
            true
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    waited.with_context(|| format!("{differs:?}"))?;
    Ok(())
}

/// Labels in the order of their names, as the parser prints them.
fn sorted(name: &str) -> String {
    let (metric, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
    let mut labels: Vec<_> = labels.split(',').collect();
    labels.sort_unstable();
    format!("{metric}{{{}}}", labels.join(","))
}

fn promtool_finds_nothing(bed: &Bed) -> anyhow::Result<()> {
    let _truepeer = serve(bed, &[])?;
    refused("127.0.0.9:0", b"")?;
    let text = scrape(bed, "Accept: */*")?;
    let said = Program::new("promtool").args(["check", "metrics"]).input(text).run(bed)?;
    ensure!(said.trim().is_empty(), "{said}");
    Ok(())
}
