//! Sessions that are handed over between kernels that know nothing of it, over links that lose, reorder, double and damage: every byte
//! arrives, in order, once, and every end.
//!
//! `HANDOVERS=N` makes so many of each test.

mod peers;
mod relay;
mod stand;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::packets::Mischief;
use truepeer_testbed::{Bed, Test};

use crate::peers::Way;
use crate::stand::Stand;

const WAYS: [(&str, Way); 4] = [
    ("questions_and_answers", Way::Questions),
    ("bulk_both_ways", Way::Bulk),
    ("slow_readers", Way::Slow),
    ("resets", Way::Reset),
];

fn main() -> ExitCode {
    let count = std::env::var("HANDOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(24);
    let mut tests = Vec::new();
    for (name, way) in WAYS {
        for (link, share) in [("good_links", 0), ("bad_links", 20)] {
            for v6 in [false, true] {
                let family = if v6 { "ipv6" } else { "ipv4" };
                let test = Test::new(format!("{name}_over_{link}_by_{family}"), move |bed: &Bed| {
                    all_arrives(bed, way, share, v6, count)
                });
                let limit = Duration::from_secs(110 + count as u64 / 5);
                tests.push(test.time_limit(limit).needs_program("ethtool").alone());
            }
        }
    }
    truepeer_testbed::main(tests)
}

fn all_arrives(bed: &Bed, way: Way, share: usize, v6: bool, count: usize) -> Result<()> {
    let stand = Stand::make(bed, Mischief::of_each(share))?;
    let serving = stand.serve(v6)?;
    let outcome = stand
        .sender
        .run(|| in_parallel(24.min(count), count, |n| peers::talk(serving.relay_at, way, n as u64)))?;
    let told = serving.relay.tally();
    println!("{told:?} {:?}", stand.counters());
    let backend = stand.backend_is_content(&serving);
    outcome.with_context(|| format!("{told:?}\n{}\nthe backend: {backend:?}", serving.relay.describe()))?;
    backend?;
    // Of a reset that is lost the programs don't learn, and both peers are gone: docs/internals/splice.md, Open.
    if way != Way::Reset || share == 0 {
        serving.relay.wait_for_ends()?;
    }
    ensure!(told.armed >= count * 3 / 4, "{told:?}");
    // A damaged window that is learnt, or an old one that is not, is counted, too.
    let beyond = stand.counters().into_iter().find(|(name, _)| *name == "beyond_edge");
    ensure!(share > 0 || beyond.is_none(), "a peer has sent more than the other one takes: {beyond:?}");
    // A session that is reset early has no time to leave.
    let wanted = match way {
        Way::Reset => count / 4,
        // A narrow window must first be used up as far as it was wide before.
        Way::Slow => count / 2,
        Way::Questions | Way::Bulk => count * 2 / 3,
    };
    ensure!(told.let_go >= wanted, "too few left user space: {told:?}");
    Ok(())
}
