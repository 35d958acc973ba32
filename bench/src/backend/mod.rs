//! Backends: this program in a separate process, so that a contestant can start it and its CPU time is
//! counted separately. They don't understand headers: a header that arrives counts as wrong bytes.

mod datagrams;
mod listener;
mod origin;
mod page;
mod page_http2;
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
use crate::place::Endpoints;
use crate::suites::{Kind, OriginKind};

/// The first argument that turns this program into a backend.
const AS_BACKEND: &str = "__bench-backend";

/// A description of the origin.
pub(crate) fn describe(origin: OriginKind, bed: &Bed) -> String {
    match origin {
        OriginKind::Nginx => {
            format!("NGINX with the guide's configuration, one worker ({})", origin::version(bed))
        }
        OriginKind::Lean => {
            "a lean origin of this benchmark: one thread, rustls, the page in memory".to_owned()
        }
    }
}

/// The command line of a backend with this many threads (an origin has one worker).
pub(crate) fn program(
    bed: &Bed,
    kind: Kind,
    at: Endpoints,
    threads: usize,
    credentials: Option<&Credentials>,
) -> anyhow::Result<Program> {
    let own = |argument: &str| {
        anyhow::Ok(own_program(bed)?.args([AS_BACKEND, kind.name(), &at.backend.to_string(), argument]))
    };
    let Kind::Origin(origin) = kind else { return own(&threads.to_string()) };
    let credential = &credentials.context("the origin's certificate")?.origin;
    match origin {
        OriginKind::Nginx => origin::program(bed, credential),
        OriginKind::Lean => own(&credential.bundle.to_string_lossy()),
    }
}

/// A copy of this program, because a rebuild during the measurement replaces the original file.
fn own_program(bed: &Bed) -> anyhow::Result<Program> {
    let exe = bed.dir().join(AS_BACKEND);
    if !exe.exists() {
        fs::copy("/proc/self/exe", &exe).context("a copy of this program")?;
    }
    Ok(Program::new(exe))
}

/// Waits until the backend serves. `running` is the backend, or has started it.
pub(crate) fn wait_ready(running: &Running, kind: Kind, at: Endpoints) -> anyhow::Result<()> {
    match kind {
        Kind::Datagrams => running.wait_bound_udp(at.backend)?,
        Kind::Origin(_) => return running.wait_listening(at.backend),
        _ => running.wait_listening(at.backend)?,
    }
    running.wait_bound_udp(at.tally)
}

/// If this process was started as a backend, runs it to its end.
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
    let [kind, address, argument] = args else {
        anyhow::bail!("expected a kind, its address, and its argument")
    };
    let address = address.parse().with_context(|| address.clone())?;
    let kind = Kind::from_name(kind).with_context(|| format!("no backend {kind:?}"))?;
    if let Kind::Origin(_) = kind {
        return page::serve(Path::new(argument));
    }
    let threads: usize = argument.parse().context("the number of threads")?;
    match kind {
        Kind::Datagrams => datagrams::serve(threads),
        _ => listener::serve(kind, address, threads),
    }
}
