//! What can go wrong, by step.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;

/// One of aya's errors, of which each step has several kinds.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why attaching, looking or detaching failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No programs inside.
    #[error(
        "this truepeer was built without clang, so that it has no kernel programs: install clang and libbpf-dev and build it again, or use truepeer proxy"
    )]
    NotBuilt,
    /// Nowhere to pin.
    #[error("{} is not on a BPF file system; type: mount -t bpf bpf {}", path.display(), mount.display())]
    NoBpfFilesystem {
        /// Where pins should go.
        path: PathBuf,
        /// Where to mount one.
        mount: PathBuf,
    },
    /// Nowhere to attach hooks.
    #[error("no cgroup v2 file system is mounted; type: mount -t cgroup2 none /sys/fs/cgroup")]
    NoCgroup,
    /// Something pinned by a truepeer of another version.
    #[error(
        "{} was attached by another version of truepeer, whose connections this one can't take over: detach with that one first",
        path.display()
    )]
    OtherLayout {
        /// Its directory.
        path: PathBuf,
    },
    /// More than the tables hold.
    #[error("{0} ports are too many: at most 64 in a network namespace")]
    TooManyPorts(usize),
    /// A file or directory.
    #[error("{}: {what} failed", path.display())]
    File {
        /// The call.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's verifier or loader.
    #[error("the kernel does not load {program}")]
    Load {
        /// Which program.
        program: &'static str,
        /// Why; the verifier's words are in it.
        source: Box<EbpfError>,
    },
    /// Loading or attaching one program.
    #[error("{program} can't be attached to {to}")]
    Attach {
        /// Which program.
        program: &'static str,
        /// A device or cgroup.
        to: String,
        /// Why.
        source: Cause,
    },
    /// A table.
    #[error("table {map}: {what} failed")]
    Map {
        /// The call.
        what: &'static str,
        /// Which.
        map: &'static str,
        /// Why.
        source: Box<MapError>,
    },
}

impl AttachError {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    pub(crate) fn map(what: &'static str, map: &'static str) -> impl FnOnce(MapError) -> Self {
        move |source| Self::Map { what, map, source: Box::new(source) }
    }

    pub(crate) fn load(program: &'static str) -> impl FnOnce(EbpfError) -> Self {
        move |source| Self::Load { program, source: Box::new(source) }
    }

    pub(crate) fn attach<E: Into<Cause>>(program: &'static str, to: impl ToString) -> impl FnOnce(E) -> Self {
        let to = to.to_string();
        move |source| Self::Attach { program, to, source: source.into() }
    }
}
