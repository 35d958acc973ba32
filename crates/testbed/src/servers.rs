//! Preconfigured real servers and senders. A test is skipped if the machine lacks its server.

pub mod dns;
mod haproxy;
mod nginx;
mod postgres;
pub mod quic;
mod redis;
mod sshd;

pub use haproxy::Haproxy;
pub use nginx::Nginx;
pub use postgres::Postgres;
pub use redis::Redis;
pub use sshd::Sshd;

use crate::bed::Bed;
use crate::program::Program;
use crate::skip::skip;
use crate::whereabouts;

/// `curl URL`, quiet except for errors, for at most ten seconds. Add arguments and call `.run(bed)`.
pub fn curl(url: &str) -> Program {
    Program::new("curl").args(["--silent", "--show-error", "--max-time", "10", url])
}

/// OpenBSD's netcat. It sends `input`, ends its direction (`-N`), and reads to the end.
pub fn nc(host: &str, port: u16, input: &[u8]) -> Program {
    Program::new("nc").args(["-N", "-w", "10", host, &port.to_string()]).input(input)
}

/// A program of Erlang (`erl`, `erlc`).
pub fn erlang(name: &str) -> Program {
    let program = Program::new(name).env("HOME", "/tmp");
    let unpacked = whereabouts::servers_dir().join("root/usr/lib/erlang");
    if unpacked.is_dir() { program.env("ERL_ROOTDIR", unpacked) } else { program }
}

/// The machine's own Python with the unpacked uvloop.
///
/// # Errors
/// Skips the test if there is none.
pub fn with_uvloop(python: Program) -> anyhow::Result<Program> {
    let servers = whereabouts::servers_dir();
    let modules = servers.join("root/usr/lib/python3/dist-packages");
    if !modules.join("uvloop").is_dir() {
        return skip("uvloop is not unpacked (make servers)");
    }
    let libraries = std::env::join_paths(whereabouts::library_dirs(&servers))?;
    Ok(python.env("PYTHONPATH", modules).env("LD_LIBRARY_PATH", libraries))
}

/// A directory of the bed that `user` owns.
fn dir_of(bed: &Bed, name: &str, user: crate::User) -> anyhow::Result<std::path::PathBuf> {
    let dir = bed.dir().join(name);
    std::fs::create_dir_all(&dir)?;
    std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid))?;
    Ok(dir)
}
