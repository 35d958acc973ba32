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
    /// No room in a cgroup.
    #[error(
        "{program} can't be attached to {to}: 64 programs of its kind are there already, the most that Linux takes; each network namespace in which \
         something is attached needs one: detach in one of them"
    )]
    CgroupFull {
        /// Which program.
        program: &'static str,
        /// The cgroup.
        to: String,
    },
    /// The kernel doesn't end connections for us.
    #[error(
        "{count} open connections can't be cut off ({what}), and without truepeer bytes of theirs would be lost or doubled unnoticed: \
         leave --now out to wait for their end, or end the server"
    )]
    Uncut {
        /// How many can't do without us.
        count: usize,
        /// What the kernel was asked for.
        what: &'static str,
        /// Its answer; EOPNOTSUPP: it was built without CONFIG_INET_DIAG_DESTROY.
        source: io::Error,
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

    /// Likewise a hook to a cgroup.
    pub(crate) fn hook(program: &'static str, to: impl ToString) -> impl FnOnce(Cause) -> Self {
        let to = to.to_string();
        move |source| match is_too_big(source.as_ref()) {
            true => Self::CgroupFull { program, to },
            false => Self::Attach { program, to, source },
        }
    }
}

/// BPF_CGROUP_MAX_PROGS (kernel/bpf/cgroup.c): E2BIG.
fn is_too_big(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.raw_os_error() == Some(libc::E2BIG))
    })
}

#[cfg(test)]
mod tests {
    use aya::programs::ProgramError;
    use aya::sys::SyscallError;

    use super::*;

    #[test]
    fn a_full_cgroup_is_said_to_be_full() {
        let said = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            let cause = ProgramError::SyscallError(SyscallError { call: "bpf_link_create", io_error });
            AttachError::hook("tcp_end", "/sys/fs/cgroup")(cause.into()).to_string()
        };
        assert!(said(libc::E2BIG).contains("64 programs of its kind are there already"));
        assert_eq!(said(libc::EPERM), "tcp_end can't be attached to /sys/fs/cgroup");
    }
}
