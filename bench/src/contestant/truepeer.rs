//! truepeer, in each way that it has.

use std::path::Path;

use truepeer_testbed::{Bed, Program};

use crate::load::Transport;
use crate::place::{BACKEND, ENTRANCE};

/// `truepeer proxy` as the manual has it; it makes its routes itself.
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

pub(super) fn version(bed: &Bed, path: &Path) -> String {
    super::first_line_of(bed, &path.to_string_lossy(), &["--version"])
}
