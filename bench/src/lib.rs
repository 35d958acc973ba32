//! Compares truepeer with its peers, in one run and in turns: loads, backends, and tables.
//!
//! ```text
//! rounds × loads × contestants ─▶ one cell: a private network with
//!
//!   load (threads here) ──header──▶ contestant ──▶ backend (this program again, in a separate process)
//!          └───────────── "no proxy": no header ──────────▲
//! ```
//! The HTTPS loads send no header, and their backend is NGINX. Where two network stacks are compared
//! (`stacks`), all parties are separate programs, in three namespaces of either stack.
//!
//! Two more programs are built of this: `demo-https`, which shows one such proxy at work ([`demo_https`]), and
//! `proof-timing` ([`proof_timing`]).
//!
//! Each cell starts from scratch, so that no contestant is affected by another (connections in TIME_WAIT,
//! routes, grown buffers). Values are compared only within a round; the report shows the ratios to "no
//! proxy".

#![forbid(unsafe_code)]

mod args;
mod backend;
mod clients;
mod contestant;
mod credentials;
pub mod demo_https;
mod link;
mod load;
mod measure;
mod metric;
mod nginx;
mod page;
mod pattern;
mod pin;
mod place;
mod progress;
pub mod proof_timing;
mod report;
mod rounds;
mod stacks;
mod suites;
mod tls;
mod version;

use std::process::ExitCode;

use args::Args;
use clap::Parser as _;
use rustix::process::{Resource, Rlimit, setrlimit};
use truepeer_testbed::{Bed, run_privately};

/// The descriptors that a program may have.
const OPEN_FILES: u64 = 100_000;

/// The program `bench`.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = backend::run_if_asked().or_else(demo_https::run_if_asked) {
        return code;
    }
    // Before the private namespaces are created: --help needs none.
    let args = Args::parse();
    run_privately("bench", |bed| bench(bed, &args))
}

fn bench(bed: &Bed, args: &Args) -> anyhow::Result<ExitCode> {
    raise_open_files();
    let plan = args.plan(bed)?;
    let machines = report::examine(bed, &plan)?;
    println!("{}", report::text::preface(&machines, &plan));
    let results = rounds::run(bed, &plan)?;
    println!("{}", report::text::tables(&plan, &results));
    if let Some(dir) = &args.write {
        report::write(dir, &machines, &plan, &results)?;
    }
    let missing = results.missing(&plan);
    for complaint in &missing {
        eprintln!("bench: {complaint}");
    }
    Ok(if args.smoke && !missing.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Thousands of idle sessions, for which some contestants need six descriptors each. Only root can exceed the
/// hard limit; otherwise contestants that need more fail, and the report shows it.
fn raise_open_files() {
    let limit = Some(OPEN_FILES);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit });
}
