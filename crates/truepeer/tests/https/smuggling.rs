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
        all.push(adjust(Test::new(format!("{needs}_reads_what_was_meant_or_nothing"), move |bed| {
            corpus_is_read_as_meant(bed, origin)
        })));
        all.push(adjust(Test::new(format!("{needs}_reads_mixtures_as_it_does_alone"), move |bed| {
            mixtures_are_read_alike(bed, origin)
        })));
    }
    all
}

/// The corpus, the mixtures, and how they are run.
const SMUGGLING: &str = include_str!("programs/smuggling.py");

/// `python3 smuggling.py WHAT ORIGINS-OUTPUT`, to its end.
fn smuggle(bed: &Bed, what: &str, origin: PlainOrigin) -> anyhow::Result<String> {
    let _origin = origin.start(bed, 8080)?;
    let truepeer =
        https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?.option("--head-timeout", "60s").start(bed)?;
    let client = Program::new("python3").args(["-c", &format!("{CONNECT}{SMUGGLING}"), what]).start(bed)?;
    let status = client.wait_end()?;
    ensure!(status.success(), "{}; {}", client.log(), truepeer.log());
    Ok(client.stdout())
}

fn corpus_is_read_as_meant(bed: &Bed, origin: PlainOrigin) -> anyhow::Result<()> {
    let said = smuggle(bed, "corpus", origin)?;
    // An empty corpus would prove nothing.
    let counts: Vec<usize> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [refused, read] = counts[..] else { anyhow::bail!("{said}") };
    ensure!(refused >= 80 && read >= 20, "{refused} refused, {read} read");
    Ok(())
}

fn mixtures_are_read_alike(bed: &Bed, origin: PlainOrigin) -> anyhow::Result<()> {
    let said = smuggle(bed, "mixtures", origin)?;
    let read: usize = said.split_whitespace().next().context("a count")?.parse()?;
    ensure!(read >= 20, "{said}");
    Ok(())
}
