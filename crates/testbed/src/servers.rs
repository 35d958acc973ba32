//! Ready-made real servers and senders. Each is skipped by name where the machine lacks it.

pub mod dns;
mod haproxy;
mod nginx;
mod postgres;
mod redis;
mod sshd;

pub use haproxy::Haproxy;
pub use nginx::Nginx;
pub use postgres::Postgres;
pub use redis::Redis;
pub use sshd::Sshd;

use crate::{Bed, Program};

/// `curl URL`, silent but for errors, at most ten seconds; add what you need and `.run(bed)`.
pub fn curl(url: &str) -> Program {
    Program::new("curl").args(["--silent", "--show-error", "--max-time", "10", url])
}

/// OpenBSD's netcat; `input` is what it sends, after which it closes its half (`-N`) and reads to the end.
pub fn nc(host: &str, port: u16, input: &[u8]) -> Program {
    Program::new("nc").args(["-N", "-w", "10", host, &port.to_string()]).input(input)
}

/// A directory of the bed that `user` owns.
fn dir_of(bed: &Bed, name: &str, user: crate::User) -> anyhow::Result<std::path::PathBuf> {
    let dir = bed.dir().join(name);
    std::fs::create_dir_all(&dir)?;
    std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid))?;
    Ok(dir)
}
