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
use clap::ValueEnum;
use truepeer_testbed::{Bed, Program, Running};

pub(crate) use origin::missing as missing_origin;
pub(crate) use tally::Totals;

use crate::credentials::Credentials;
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
    /// Serves the page by HTTPS.
    Origin(OriginKind),
}

/// Who the origin of the HTTPS loads is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OriginKind {
    /// NGINX, as the guide that these loads follow has it.
    Nginx,
    /// This program: it leaves more of the cores to the proxies.
    Lean,
}

impl OriginKind {
    /// What it is, in words.
    pub(crate) fn describe(self, bed: &Bed) -> String {
        match self {
            Self::Nginx => {
                format!("NGINX with the guide's configuration, one worker ({})", origin::version(bed))
            }
            Self::Lean => {
                "our own, leaner than the guide's NGINX: one thread, rustls, the page in memory".to_owned()
            }
        }
    }
}

impl Kind {
    /// Those that this program can be.
    const OWN: [(Kind, &'static str); 6] = [
        (Kind::Echo, "echo"),
        (Kind::EchoShort, "echo-short"),
        (Kind::Sink, "sink"),
        (Kind::Source, "source"),
        (Kind::Datagrams, "datagrams"),
        (Kind::Origin(OriginKind::Lean), "origin"),
    ];

    fn name(self) -> &'static str {
        Kind::OWN.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    fn from_name(name: &str) -> Option<Kind> {
        Kind::OWN.iter().find(|(_, own)| *own == name).map(|(kind, _)| *kind)
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
