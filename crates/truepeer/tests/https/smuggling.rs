//! Ambiguous requests with a second parser behind truepeer: the origin either parses what was meant, or gets
//! nothing. The origins are written in Go and Node, with their own parsers, and print what they parsed. They
//! share no code with truepeer.

use anyhow::{Context as _, ensure};
use truepeer_testbed::{Bed, Program, Test};

use crate::kit::{CONNECT, PlainOrigin, https};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for (origin, needs) in [(PlainOrigin::Node, "node"), (PlainOrigin::Go, "go")] {
        // Go compiles its standard library first.
        let adjust = |test: Test| {
            let test = test.needs_program("python3").needs_program(needs);
            if needs == "go" { test.long().time_limit(std::time::Duration::from_secs(600)) } else { test }
        };
        for (by, version) in [("", Version::Http1), ("_by_http2", Version::Http2)] {
            all.push(adjust(Test::new(format!("{needs}_reads_what_was_meant_or_nothing{by}"), move |bed| {
                corpus_is_read_as_meant(bed, origin, version)
            })));
            all.push(adjust(Test::new(format!("{needs}_reads_http2_as_meant_or_nothing{by}"), move |bed| {
                frames_are_read_as_meant(bed, origin, version)
            })));
            // Node serves either version on a port, so there is nothing to compare with.
            if (needs, version) != ("node", Version::Http2) {
                all.push(adjust(Test::new(
                    format!("{needs}_reads_mixtures_as_it_does_alone{by}"),
                    move |bed| mixtures_are_read_alike(bed, origin, version),
                )));
            }
        }
    }
    all
}

/// The version of HTTP spoken with the origin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// The corpora, the mixtures, and how they are run: of HTTP/1.1, and of HTTP/2.
const SMUGGLING: &str = include_str!("programs/smuggling.py");
const SMUGGLING_H2: &str = include_str!("programs/smuggling_h2.py");

/// What the client printed, and the requests that the origin has read. `python3 PROGRAM WHAT`, to its end.
fn smuggle(
    bed: &Bed,
    program: &str,
    what: &str,
    origin: PlainOrigin,
    version: Version,
) -> anyhow::Result<(String, String)> {
    let (more, protocol): (&[&str], _) = match version {
        Version::Http1 => (&[], "http1"),
        Version::Http2 => (&["h2"], "h2"),
    };
    let (origin_kind, origin) = (origin, origin.start_with(bed, 8080, more)?);
    let truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?
        .option("--head-timeout", "60s")
        .option("--origin-protocol", protocol)
        .start(bed)?;
    let needs_host = matches!((origin_kind, version), (PlainOrigin::Node, Version::Http2));
    let host = if needs_host { "host-required" } else { "" };
    let client =
        Program::new("python3").args(["-c", &format!("{CONNECT}{program}"), what, host]).start(bed)?;
    let status = client.wait_end()?;
    ensure!(status.success(), "{}; {}", client.log(), truepeer.log());
    Ok((client.stdout(), origin.stdout()))
}

fn corpus_is_read_as_meant(bed: &Bed, origin: PlainOrigin, version: Version) -> anyhow::Result<()> {
    let (said, _) = smuggle(bed, SMUGGLING, "corpus", origin, version)?;
    // An empty corpus would prove nothing.
    let counts: Vec<usize> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [refused, read] = counts[..] else { anyhow::bail!("{said}") };
    ensure!(refused >= 80 && read >= 20, "{refused} refused, {read} read");
    Ok(())
}

/// The origin has read the requests that must be read, and no other.
fn frames_are_read_as_meant(bed: &Bed, origin: PlainOrigin, version: Version) -> anyhow::Result<()> {
    let (expected, output) = smuggle(bed, SMUGGLING_H2, "", origin, version)?;
    let read: Vec<_> = output.lines().filter(|line| line.starts_with('[')).collect();
    let expected: Vec<_> = expected.lines().collect();
    ensure!(expected.len() >= 20, "{} requests are read", expected.len());
    ensure!(read == expected, "{read:?} instead of {expected:?}");
    Ok(())
}

fn mixtures_are_read_alike(bed: &Bed, origin: PlainOrigin, version: Version) -> anyhow::Result<()> {
    let (said, _) = smuggle(bed, SMUGGLING, "mixtures", origin, version)?;
    let read: usize = said.split_whitespace().next().context("a count")?.parse()?;
    ensure!(read >= 20, "{said}");
    Ok(())
}
