//! truepeer, in each of its ways.

use std::path::Path;

use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, Program};

use crate::place::{BACKEND, ENTRANCE};
use crate::suites::Transport;

/// `truepeer proxy` as in its manual. It creates its own routes.
pub(super) fn proxy(path: &Path, transport: Transport) -> Program {
    let protocol = if transport == Transport::Tcp { "tcp" } else { "udp" };
    Program::new(path).args([
        "proxy".to_owned(),
        format!("--protocol={protocol}"),
        format!("--listen={ENTRANCE}"),
        format!("--ipv4={BACKEND}"),
        format!("--ipv6=[::1]:{}", BACKEND.port()),
    ])
}

/// The mechanisms of `truepeer run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    Auto,
    Notify,
}

/// The backend, started by `truepeer run`.
pub(super) fn run(path: &Path, via: Via, backend: Program) -> Program {
    let via = match via {
        Via::Auto => "--via=auto",
        Via::Notify => "--via=notify",
    };
    backend.launched_by(path, &["run", via, &port(), "--"])
}

/// `truepeer attach` on the backend's port. Dropping it detaches at once.
pub(super) struct Attached<'a> {
    by: ByAttach,
    bed: &'a Bed,
}

impl<'a> Attached<'a> {
    pub(super) fn make(bed: &'a Bed, path: &Path, transport: Transport) -> anyhow::Result<Self> {
        let by = ByAttach::new(path);
        let protocol = if transport == Transport::Tcp { "/tcp" } else { "/udp" };
        by.command(bed, &[&(port() + protocol)])?.run(bed)?;
        Ok(Self { by, bed })
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let detached =
            self.by.command(self.bed, &["detach", "--now"]).and_then(|command| command.run(self.bed));
        if let Err(error) = detached {
            eprintln!("bench: truepeer attach detach: {error:#}");
        }
    }
}

fn port() -> String {
    format!("--port={}", BACKEND.port())
}

pub(super) fn version(bed: &Bed, path: &Path) -> String {
    crate::version::first_line_of(bed, &path.to_string_lossy(), &["--version"])
}
