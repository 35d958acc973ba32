//! Backends: this program again, as a process of its own, so that a contestant may start it, and so that what it spends
//! is not counted with anybody else. They know nothing of headers: one that arrives is a wrong byte.

mod datagrams;
mod listener;
mod stream;
mod tally;

use std::env;
use std::fs;
use std::process::ExitCode;

use anyhow::Context;
use truepeer_testbed::{Bed, Program, Running};

pub(crate) use tally::Totals;

use crate::place::{BACKEND, TALLY};

/// The first argument that makes this program a backend.
const AS_BACKEND: &str = "__bench-backend";

/// What a backend does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends back what it reads; connections last, and are dealt out evenly to the threads.
    Echo,
    /// Likewise; connections are short and stay with the thread that accepted them.
    EchoShort,
    /// Reads [`crate::pattern::Pattern::bulk`] to its end.
    Sink,
    /// Writes it until the other side has closed its half.
    Source,
    /// Sends each datagram back.
    Datagrams,
}

impl Kind {
    const ALL: [(Kind, &'static str); 5] = [
        (Kind::Echo, "echo"),
        (Kind::EchoShort, "echo-short"),
        (Kind::Sink, "sink"),
        (Kind::Source, "source"),
        (Kind::Datagrams, "datagrams"),
    ];

    fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().find(|(_, own)| *own == name).map(|(kind, _)| *kind)
    }
}

/// The command line of a backend with so many threads; it listens on [`BACKEND`].
pub(crate) fn program(bed: &Bed, kind: Kind, threads: usize) -> anyhow::Result<Program> {
    let exe = bed.dir().join(AS_BACKEND);
    if !exe.exists() {
        // A copy: whoever builds anew during the measurement replaces the file that we were started from.
        fs::copy("/proc/self/exe", &exe).context("a copy of this program")?;
    }
    Ok(Program::new(exe).arg(AS_BACKEND).arg(kind.name()).arg(threads.to_string()))
}

/// Waits until the backend, which `running` is or has started, serves.
pub(crate) fn wait_ready(running: &Running, kind: Kind) -> anyhow::Result<()> {
    match kind {
        Kind::Datagrams => running.wait_bound_udp(BACKEND)?,
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
    let [kind, threads] = args else { anyhow::bail!("expected a kind and a number of threads") };
    let kind = Kind::from_name(kind).with_context(|| format!("no backend {kind:?}"))?;
    let threads: usize = threads.parse().context("the number of threads")?;
    match kind {
        Kind::Datagrams => datagrams::serve(threads),
        _ => listener::serve(kind, threads),
    }
}
