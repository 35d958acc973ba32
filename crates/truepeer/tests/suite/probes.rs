//! `truepeer probe` and programs of others: it finds by itself what is known of them, and does not accuse
//! truepeer.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use truepeer_testbed::peers::{Place, classic_rules, over_tcp};
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests};

use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, TRUEPEER, proxy};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![probe_accuses_truepeer_of_mixed_families_alone, probe_refuses_what_it_may_not_probe];
    let named = |test: Vec<Test>, program| test.into_iter().map(move |test| test.needs_program(program));
    all.extend(named(tests![probe_finds_the_reserved_values_that_nginx_takes], "nginx"));
    all.extend(named(tests![probe_finds_the_unknown_and_the_zeros_of_haproxy], "haproxy"));
    all.extend(named(tests![probe_finds_the_panic_and_the_localhost_of_go_mmproxy], "go-mmproxy"));
    all
}

/// What probe reports of the receiver at [`DOOR_V4`] before an echo server.
fn report(bed: &Bed, start: impl FnOnce(&Bed) -> anyhow::Result<Running>) -> anyhow::Result<Value> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let logs: Vec<_> = std::fs::read_dir(bed.dir().join("logs"))?.collect::<Result<_, _>>()?;
    let log = logs.iter().map(|file| file.path()).find(|path| path.extension().is_some_and(|of| of == "out"));
    let _receiver = start(bed)?;
    let probe = Program::new(TRUEPEER)
        .args(["probe", DOOR_V4, "--as", "echo", "--from", "127.0.0.9", "--patience", "2s", "--json"])
        .arg("--client-log")
        .arg(log.context("the backend's log")?)
        .start(bed)?;
    let status = probe.wait_end()?;
    ensure!(matches!(status.code(), Some(0 | 1)), "{status}: {}", probe.log());
    Ok(serde_json::from_str(&probe.stdout())?)
}

/// The findings with this verdict.
fn names<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings.filter(|one| one["verdict"] == verdict).filter_map(|one| one["name"].as_str()).collect()
}

fn finds(report: &Value, verdict: &str, wanted: &[&str]) -> anyhow::Result<()> {
    let found = names(report, verdict);
    let missing: Vec<_> = wanted.iter().filter(|name| !found.contains(name)).collect();
    ensure!(missing.is_empty(), "not {verdict}: {missing:?} in {report:#}");
    Ok(())
}

/// The name of what is sent in two segments.
const SPLIT: [&str; 4] = [
    "version 1 in two segments, 46 bytes cut at every byte",
    "version 1 in two segments, 47 bytes cut at every byte",
    "version 2 in two segments, 28 bytes cut at every byte",
    "version 2 in two segments, 52 bytes cut at every byte",
];

fn probe_finds_the_reserved_values_that_nginx_takes(bed: &Bed) -> anyhow::Result<()> {
    let listen = format!("{DOOR_V4} proxy_protocol");
    let report = report(bed, |bed| Nginx::default().relay(&listen, BACKEND_V4, "").start(bed))?;
    let taken = [
        "NGINX: commands 2 to 15 accepted",
        "NGINX: reserved families accepted",
        "v2 family 15",
        "v2 protocol 3",
    ];
    finds(&report, "broken", &taken)?;
    finds(&report, "permitted", &SPLIT)
}

fn probe_finds_the_unknown_and_the_zeros_of_haproxy(bed: &Bed) -> anyhow::Result<()> {
    let config = format!("listen l\n  bind {DOOR_V4} accept-proxy\n  server s {BACKEND_V4}\n");
    let report = report(bed, |bed| Haproxy::with_config(&config, &[DOOR_V4]).start(bed))?;
    finds(
        &report,
        "broken",
        &[
            "HAProxy: UNKNOWN with addresses refused",
            "HAProxy: leading zeros accepted",
            "v1 UNKNOWN, worst case",
        ],
    )?;
    finds(&report, "permitted", &SPLIT)
}

fn probe_finds_the_panic_and_the_localhost_of_go_mmproxy(bed: &Bed) -> anyhow::Result<()> {
    let report = report(bed, |bed| {
        classic_rules(bed)?;
        let place = Place { listen: DOOR_V4, ipv4: BACKEND_V4, ipv6: BACKEND_V6 };
        let relay = over_tcp(bed, "go-mmproxy", place)?.start(bed)?;
        relay.wait_listening(DOOR_V4)?;
        Ok(relay)
    })?;
    let faults = [
        "v2 LOCAL",
        "v2 LOCAL with addresses",
        "v1 port with a leading zero",
        "CVE-2019-14243: IPv4 in 0 bytes",
    ];
    finds(&report, "broken", &faults)?;
    finds(&report, "permitted", &SPLIT)
}

fn probe_accuses_truepeer_of_mixed_families_alone(bed: &Bed) -> anyhow::Result<()> {
    let report = report(bed, |bed| proxy().start(bed))?;
    let broken = names(&report, "broken");
    let on_purpose = ["NGINX writes", "source is IP", "one of each"];
    let others: Vec<_> =
        broken.iter().filter(|name| !on_purpose.iter().any(|part| name.contains(part))).collect();
    // Two of the five name a client that none may be: ::1 and ::.
    ensure!(others.is_empty() && broken.len() == 3, "{broken:?}: {report:#}");
    ensure!(names(&report, "advised").is_empty(), "{report:#}");
    Ok(())
}

/// Addresses of others, and a cloud's metadata server.
fn probe_refuses_what_it_may_not_probe(bed: &Bed) -> anyhow::Result<()> {
    for (target, words) in
        [("203.0.113.5:80", "--yes-i-may 203.0.113.5"), ("169.254.169.254:80", "neither loopback")]
    {
        let probe = Program::new(TRUEPEER).args(["probe", target]).start(bed)?;
        let status = probe.wait_end()?;
        ensure!(status.code() == Some(2) && probe.stderr().contains(words), "{status}: {}", probe.log());
    }
    Ok(())
}
