//! The errors, by step.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;

/// An error of aya, which has several kinds for each step.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why attaching, reading the status or detaching failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The binary contains no kernel programs.
    #[error(
        "this truepeer contains no kernel programs because it was built without clang; install clang and libbpf-dev and build it again, or use truepeer proxy"
    )]
    NotBuilt,
    /// A function of the kernel is missing.
    #[error(
        "needs bpf_sk_assign_tcp_reqsk() (Linux 6.9) and net.ipv4.tcp_syncookies other than 0, for connections that truepeer takes over"
    )]
    NoAssign,
    /// Each listener has lists of its own.
    #[error("more than 15 listeners")]
    TooManyListeners,
    /// Other processes have all shares of a network namespace's tables of sessions.
    #[error("other truepeers of this network namespace have the tables")]
    TablesTaken,
    /// The kernel makes sessions for one process of a network namespace.
    #[error("another truepeer began first, and the kernel makes sessions for one process only")]
    OtherMakes,
    /// There is no BPF file system for the pins.
    #[error("{} is not on a BPF file system", path.display())]
    NoBpfFilesystem {
        /// The directory of the pins.
        path: PathBuf,
    },
    /// Another user could change what is pinned.
    #[error("{} {wrong}", path.display())]
    Untrusted {
        /// The directory.
        path: PathBuf,
        /// The fault, and the command that mends it.
        wrong: String,
    },
    /// A file system is not mounted and can't be.
    #[error(
        "no {kind} file system is mounted, and truepeer can't mount one itself: that takes CAP_SYS_ADMIN, and CAP_SYS_CHROOT where process 1 has other mounts"
    )]
    Mount {
        /// Which.
        kind: &'static str,
        /// The kernel's error.
        source: Cause,
    },
    /// Only a part of the cgroup hierarchy can be seen.
    #[error(
        "{} is not the root of the cgroup v2 hierarchy but one cgroup of it, as in a container: the servers of other cgroups would not be shown the client; \
         run attach on the host, or mount the host's /sys/fs/cgroup into this container (docker run -v /sys/fs/cgroup:/host/cgroup)",
        path.display()
    )]
    NoCgroupRoot {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Pins of another version of truepeer.
    #[error(
        "{} was attached by another version of truepeer, whose connections this one can't take over: detach with that one first, or restart the container or pod",
        path.display()
    )]
    OtherLayout {
        /// Their directory.
        path: PathBuf,
    },
    /// More ports than the tables can hold.
    #[error(
        "{0} ports are too many: a network namespace can have at most 64; a range of more than eight, such as 8000-8010, counts as one"
    )]
    TooManyPorts(usize),
    /// More ports in ranges than the tables can hold.
    #[error("{0} ports are too many: a network namespace can have at most 4096")]
    TooLongRanges(usize),
    /// The calling thread is in another network namespace than what is to be detached.
    #[error("this is another network namespace than the one whose attachment is to end")]
    OtherNetns,
    /// More attachments than the lists can tell apart.
    #[error("a network namespace can have at most 16 attachments")]
    TooManyAttachments,
    /// Attached ports that the new rules don't name.
    #[error("port {} is attached here and not named, so it would no longer be served", ports.join(", "))]
    LeftOut {
        /// The ports: `80`, `53/udp`.
        ports: Vec<String>,
    },
    /// A port of the new rules is attached.
    #[error("port {} is attached here already", ports.join(", "))]
    Taken {
        /// The ports.
        ports: Vec<String>,
    },
    /// Two attachments whose UDP ports lead to one backend.
    #[error(
        "UDP port {0} of the server belongs to another attachment here: its answers could not be told apart; name both ports in one attach"
    )]
    SharedBackend(u16),
    /// A port that should be taken out.
    #[error("port {} is not attached here (attach status lists those that are)", ports.join(", "))]
    NotAttached {
        /// The ports.
        ports: Vec<String>,
    },
    /// A file operation failed.
    #[error("{}: {what} failed", path.display())]
    File {
        /// The call.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel's verifier or loader refused a program.
    #[error("the kernel refused to load {program}")]
    Load {
        /// The program.
        program: &'static str,
        /// The reason, which contains the verifier's output.
        source: Box<EbpfError>,
    },
    /// A program could not be loaded or attached.
    #[error("{program} can't be attached to {to}")]
    Attach {
        /// The program.
        program: &'static str,
        /// The device or cgroup.
        to: String,
        /// The reason.
        source: Cause,
    },
    /// The cgroup has no room for another hook.
    #[error(
        "{program} can't be attached to {to}: 64 programs of its kind are already attached there, the most that Linux allows; each network namespace in which \
         truepeer is attached needs one; detach in one of them, or attach to containers by --container or --pid, which uses their own cgroups"
    )]
    CgroupFull {
        /// The program.
        program: &'static str,
        /// The cgroup.
        to: String,
    },
    /// The kernel can't end connections on request.
    #[error(
        "{count} open connections can't be cut off ({what}), and without truepeer some of their bytes would silently be lost or doubled: \
         leave --now out to wait until they end, or stop the server"
    )]
    Uncut {
        /// How many connections need the programs.
        count: usize,
        /// The request to the kernel.
        what: &'static str,
        /// Its error; EOPNOTSUPP: it was built without CONFIG_INET_DIAG_DESTROY.
        source: io::Error,
    },
    /// A table operation failed.
    #[error("table {map}: {what} failed")]
    Map {
        /// The call.
        what: &'static str,
        /// The table.
        map: &'static str,
        /// The reason.
        source: Box<MapError>,
    },
}

impl AttachError {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    pub(crate) fn mount<E: Into<Cause>>(kind: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Mount { kind, source: source.into() }
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

    /// The same for attaching a hook to a cgroup.
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

/// Whether what was removed from a table was there.
pub(crate) fn was_there(removed: Result<(), MapError>) -> Result<bool, MapError> {
    match removed {
        Ok(()) => Ok(true),
        Err(MapError::KeyNotFound) => Ok(false),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use aya::programs::ProgramError;
    use aya::sys::SyscallError;

    use super::*;

    #[test]
    fn a_full_cgroup_has_its_own_message() {
        let said = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            let cause = ProgramError::SyscallError(SyscallError { call: "bpf_link_create", io_error });
            AttachError::hook("tcp_end", "/sys/fs/cgroup")(cause.into()).to_string()
        };
        assert!(said(libc::E2BIG).contains("64 programs of its kind are already attached there"));
        assert_eq!(said(libc::EPERM), "tcp_end can't be attached to /sys/fs/cgroup");
    }

    #[test]
    fn what_is_gone_already_needs_no_removal() {
        let of = |kind: io::ErrorKind| {
            let error = SyscallError { call: "bpf_map_delete_elem", io_error: kind.into() };
            was_there(Err(MapError::SyscallError(error)))
        };
        assert!(was_there(Ok(())).unwrap() && !of(io::ErrorKind::NotFound).unwrap());
        assert!(!was_there(Err(MapError::KeyNotFound)).unwrap());
        assert!(of(io::ErrorKind::PermissionDenied).is_err());
    }
}
