//! truepeer, in each of its ways.

use std::path::Path;

use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, Program};

use crate::clients::SENDERS_NETWORK;
use crate::place::{BACKEND, Endpoints};
use crate::suites::Transport;

/// `truepeer proxy` as in its manual. It creates its own routes.
fn command(path: &Path, at: Endpoints, transport: Transport) -> Program {
    let protocol = if transport == Transport::Tcp { "tcp" } else { "udp" };
    // Loopback's senders are trusted by default.
    let allowed = (!at.entrance.ip().is_loopback()).then(|| format!("--allow={SENDERS_NETWORK}"));
    Program::new(path)
        .args([
            "proxy".to_owned(),
            format!("--protocol={protocol}"),
            format!("--listen={}", at.entrance),
            format!("--ipv4={}", at.backend),
            format!("--ipv6=[::1]:{}", at.backend.port()),
        ])
        .args(allowed)
}

/// The log line once the kernel has taken the programs by which sessions leave user space. Without it, every
/// session is relayed.
pub(super) const MAY_LEAVE: &str = "sessions may leave user space";

/// The default of `truepeer proxy`: sessions leave user space when they are worth it. Its pins are in a BPF file
/// system of its own, which ends with it.
pub(super) fn proxy(path: &Path, at: Endpoints, transport: Transport) -> Program {
    let own_pins = ["--mount", "sh", "-c", "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"", "sh"];
    let program = command(path, at, transport);
    if ByAttach::missing().is_none() { program.launched_by("unshare", &own_pins) } else { program }
}

/// Every session is relayed.
pub(super) fn relay(path: &Path, at: Endpoints, transport: Transport) -> Program {
    command(path, at, transport).arg("--splice=off")
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
