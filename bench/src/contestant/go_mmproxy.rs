//! go-mmproxy, as packaged by Debian.

use std::fs;

use truepeer_testbed::{Program, servers_dir};

use crate::place::Endpoints;
use crate::suites::Transport;

pub(super) fn program(threads: Option<&str>, at: Endpoints, transport: Transport) -> Program {
    let protocol = if transport == Transport::Tcp { "tcp" } else { "udp" };
    let program = Program::new("go-mmproxy").args([
        "-p".to_owned(),
        protocol.to_owned(),
        "-l".to_owned(),
        at.entrance.to_string(),
        "-4".to_owned(),
        at.backend.to_string(),
        "-6".to_owned(),
        format!("[::1]:{}", at.backend.port()),
    ]);
    match threads {
        Some(threads) => program.env("GOMAXPROCS", threads),
        None => program,
    }
}

/// It can't print its version, but the package manager can.
pub(super) fn version() -> String {
    let packages = fs::read_to_string(servers_dir().join("VERSIONS")).unwrap_or_default();
    let package = packages.lines().find_map(|line| line.strip_prefix("go-mmproxy_"));
    let version = package.and_then(|rest| rest.split('_').next());
    format!("go-mmproxy {}", version.unwrap_or("of unknown version"))
}
