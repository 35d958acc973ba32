//! Where the pins of a network namespace are.
//!
//! ```text
//! /sys/fs/bpf/truepeer/<cookie of the network namespace>/<layout>/{maps,links}/
//! ```

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};

use crate::AttachError;
use crate::layout::LAYOUT;

/// Where pins are, unless said otherwise.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/truepeer";

/// `BPF_FS_MAGIC` (linux/magic.h).
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
/// `SO_NETNS_COOKIE` (asm-generic/socket.h), Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The pins of the calling thread's network namespace.
#[derive(Debug, Clone)]
pub struct Place {
    root: PathBuf,
    netns_cookie: u64,
}

impl Place {
    /// The place of the network namespace that the calling thread is in.
    pub fn here(pins: &Path) -> Result<Self, AttachError> {
        let netns_cookie =
            netns_cookie().map_err(AttachError::file("SO_NETNS_COOKIE", "this network namespace"))?;
        Ok(Self { root: pins.join(netns_cookie.to_string()), netns_cookie })
    }

    /// Whether this path, or the nearest above it that exists, is on a BPF file system.
    pub fn can_be_at(path: &Path) -> bool {
        let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        statfs(existing).is_ok_and(|found| u32::try_from(found.f_type) == Ok(BPF_FS_MAGIC))
    }

    /// What the kernel calls this network namespace.
    pub fn netns_cookie(&self) -> u64 {
        self.netns_cookie
    }

    /// Whether anything is attached by this layout.
    pub fn exists(&self) -> bool {
        self.maps().exists()
    }

    /// Where everything is pinned.
    pub fn path(&self) -> PathBuf {
        self.root.join(LAYOUT.to_string())
    }

    pub(crate) fn maps(&self) -> PathBuf {
        self.path().join("maps")
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.path().join("links")
    }

    /// Makes the directories. Fails where they can't be pins, or hold those of another layout.
    pub(crate) fn make(&self) -> Result<(), AttachError> {
        if !Self::can_be_at(&self.root) {
            let mount = self.root.ancestors().nth(2).unwrap_or(&self.root).to_owned();
            return Err(AttachError::NoBpfFilesystem { path: self.root.clone(), mount });
        }
        if self.root.exists() && !self.exists() && has_entries(&self.root) {
            return Err(AttachError::OtherLayout { path: self.root.clone() });
        }
        for directory in [self.maps(), self.links()] {
            fs::create_dir_all(&directory).map_err(AttachError::file("mkdir", &directory))?;
        }
        Ok(())
    }

    /// Keeps other instances away until it is dropped; the directory must exist.
    pub(crate) fn lock(&self) -> Result<impl Sized + use<>, AttachError> {
        let directory = fs::File::open(self.path()).map_err(AttachError::file("open", self.path()))?;
        flock(&directory, FlockOperation::LockExclusive)
            .map_err(|error| AttachError::file("flock", self.path())(error.into()))?;
        Ok(directory)
    }

    /// Removes all pins, links first: programs go before what they look into.
    pub(crate) fn remove(&self) -> Result<(), AttachError> {
        for directory in [self.links(), self.maps()] {
            for entry in entries(&directory)? {
                fs::remove_file(&entry).map_err(AttachError::file("unlink", &entry))?;
            }
            fs::remove_dir(&directory).map_err(AttachError::file("rmdir", &directory))?;
        }
        for directory in [self.path(), self.root.clone()] {
            fs::remove_dir(&directory).map_err(AttachError::file("rmdir", &directory))?;
        }
        Ok(())
    }
}

/// The files in a directory; none if it isn't there.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, AttachError> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(AttachError::file("reading", directory)(error)),
        Ok(found) => Ok(found.flatten().map(|entry| entry.path()).collect()),
    }
}

fn has_entries(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

fn netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut len = libc::socklen_t::try_from(size_of_val(&cookie)).unwrap_or_default();
    // SAFETY: the descriptor is open for the length of the call; `cookie` and `len` are ours, writable, and `len` is the
    // size of `cookie`, beyond which the kernel does not write.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The root of the cgroup v2 hierarchy: where it is mounted is up to the distribution.
pub fn cgroup_root() -> Result<PathBuf, AttachError> {
    let mounts =
        fs::read_to_string("/proc/self/mounts").map_err(AttachError::file("reading", "/proc/self/mounts"))?;
    let mut fields = mounts.lines().map(|line| line.split(' '));
    let found = fields.find_map(|mut mount| {
        let path = mount.nth(1)?;
        (mount.next() == Some("cgroup2")).then(|| PathBuf::from(path))
    });
    found.ok_or(AttachError::NoCgroup)
}
