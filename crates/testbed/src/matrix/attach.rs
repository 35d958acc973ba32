//! The way `attach`: programs in the kernel, attached after the backend has been started.

use std::fs;
use std::path::PathBuf;

use rustix::mount::{MountFlags, mount};

use super::{Deliver, Delivered, Way};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::program::Program;
use crate::skip::skip;

/// AF_INET6 sockets, which can show clients of either family. Senders connect to 127.0.0.1 and ::1.
const BACKEND: [&str; 2] = ["[::ffff:127.0.0.1]:80", "[::1]:80"];
const PORT: &str = "80";

/// Delivers by `truepeer attach`.
#[derive(Debug)]
pub struct ByAttach {
    exe: PathBuf,
}

impl ByAttach {
    /// Uses this binary, run by root.
    pub fn new(exe: impl Into<PathBuf>) -> ByAttach {
        ByAttach { exe: exe.into() }
    }

    /// Why it can't be used on this machine, if it can't.
    pub fn missing() -> Option<&'static str> {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let all_users = map.contains("4294967295");
        (!all_users).then_some("attach needs CAP_BPF in the initial user namespace: run as root")
    }

    /// `truepeer attach` with its pins on a BPF file system of the test, in the calling thread's network
    /// namespace.
    pub fn command(&self, bed: &Bed, args: &[&str]) -> anyhow::Result<Program> {
        let pins = mount_bpf(bed)?.join("truepeer");
        Ok(Program::new(&self.exe).arg("attach").args(args).arg("--pins").arg(pins))
    }
}

/// A BPF file system in the test's mounts. It disappears with the test, and so do all links pinned there.
fn mount_bpf(bed: &Bed) -> anyhow::Result<PathBuf> {
    if let Some(reason) = ByAttach::missing() {
        return skip(reason);
    }
    let dir = bed.dir().join("bpf");
    if !dir.exists() {
        fs::create_dir_all(&dir)?;
        mount("bpf", &dir, "bpf", MountFlags::empty(), None)?;
    }
    Ok(dir)
}

/// A BPF file system of the test's mounts, where every machine has its own.
pub fn mount_bpf_in_place() -> anyhow::Result<()> {
    if let Some(reason) = ByAttach::missing() {
        return skip(reason);
    }
    mount("bpf", "/sys/fs/bpf", "bpf", MountFlags::empty(), None)?;
    Ok(())
}

impl Deliver for ByAttach {
    fn way(&self) -> Way {
        Way::Attach
    }

    fn inapplicable(&self, case: &str) -> Option<&'static str> {
        match case {
            "bytes_that_are_no_header_end_their_connection_only" => Some(
                "attach has no process that could log them; it counts them, which attach's own tests check",
            ),
            _ => None,
        }
    }

    fn put_behind(&self, bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Delivered> {
        let backend = behaviour.start(bed, &BACKEND)?;
        self.command(bed, &[&["--port", PORT], options].concat())?.run(bed)?;
        Ok(Delivered {
            v4: format!("127.0.0.1:{PORT}").parse()?,
            v6: format!("[::1]:{PORT}").parse()?,
            truepeer: None,
            backend,
        })
    }
}
