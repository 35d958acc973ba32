//! Backends: this program again, as a process of its own, so that a contestant may start it, and so that what it spends
//! is not counted with anybody else. They know nothing of headers: one that arrives is a wrong byte.

mod datagrams;
mod listener;
mod origin;
mod page;
mod stream;
mod tally;

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use truepeer_testbed::{Bed, Program, Running};

pub(crate) use origin::missing as missing_origin;
pub(crate) use tally::Totals;

use crate::credentials::Credentials;
use crate::place::{BACKEND, TALLY};
use crate::suites::{Kind, OriginKind};

/// The first argument that makes this program a backend.
const AS_BACKEND: &str = "__bench-backend";

/// What an origin is, in words.
pub(crate) fn describe(origin: OriginKind, bed: &Bed) -> String {
    match origin {
        OriginKind::Nginx => {
            format!("NGINX with the guide's configuration, one worker ({})", origin::version(bed))
        }
        OriginKind::Lean => {
            "our own, leaner than the guide's NGINX: one thread, rustls, the page in memory".to_owned()
        }
    }
}

/// The command line of a backend with so many threads (an origin has one worker); it listens on [`BACKEND`].
pub(crate) fn program(
    bed: &Bed,
    kind: Kind,
    threads: usize,
    credentials: Option<&Credentials>,
) -> anyhow::Result<Program> {
    let own = |argument: &str| anyhow::Ok(own_program(bed)?.arg(AS_BACKEND).arg(kind.name()).arg(argument));
    let Kind::Origin(origin) = kind else { return own(&threads.to_string()) };
    let credential = &credentials.context("the origin's certificate")?.origin;
    match origin {
        OriginKind::Nginx => origin::program(bed, credential),
        OriginKind::Lean => own(&credential.bundle.to_string_lossy()),
    }
}

/// A copy of this program: whoever builds anew during the measurement replaces the file that we were started from.
fn own_program(bed: &Bed) -> anyhow::Result<Program> {
    let exe = bed.dir().join(AS_BACKEND);
    if !exe.exists() {
        fs::copy("/proc/self/exe", &exe).context("a copy of this program")?;
    }
    Ok(Program::new(exe))
}

/// Waits until the backend, which `running` is or has started, serves.
pub(crate) fn wait_ready(running: &Running, kind: Kind) -> anyhow::Result<()> {
    match kind {
        Kind::Datagrams => running.wait_bound_udp(BACKEND)?,
        Kind::Origin(_) => return running.wait_listening(BACKEND),
        _ => running.wait_listening(BACKEND)?,
    }
    running.wait_bound_udp(TALLY)
}

/// Is this process to be a backend? Then it is one, to its end.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut args = env::args().skip(1);
    if args.next().as_deref() != Some(AS_BACKEND) {
        return None;
    }
    let args: Vec<String> = args.collect();
    Some(match serve(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("backend: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn serve(args: &[String]) -> anyhow::Result<()> {
    let [kind, argument] = args else { anyhow::bail!("expected a kind and its argument") };
    let kind = Kind::from_name(kind).with_context(|| format!("no backend {kind:?}"))?;
    if let Kind::Origin(_) = kind {
        return page::serve(Path::new(argument));
    }
    let threads: usize = argument.parse().context("the number of threads")?;
    match kind {
        Kind::Datagrams => datagrams::serve(threads),
        _ => listener::serve(kind, threads),
    }
}
