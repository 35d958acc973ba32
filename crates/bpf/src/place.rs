//! The directory of a network namespace's pins.
//!
//! ```text
//! /sys/fs/bpf/truepeer/<cookie of the network namespace>/<layout>/{maps,links}/
//! ```

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};

use crate::error::AttachError;
use crate::layout::LAYOUT;
use crate::trust;

/// `SO_NETNS_COOKIE` (asm-generic/socket.h), Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The pins of the calling thread's network namespace.
#[derive(Debug, Clone)]
pub struct Place {
    pins: PathBuf,
    root: PathBuf,
    netns_cookie: u64,
    layout: u32,
}

impl Place {
    /// The place of the calling thread's network namespace.
    pub fn here(pins: &Path) -> Result<Self, AttachError> {
        Self::of_layout(pins, LAYOUT)
    }

    /// Likewise of tables with a layout of their own, in a directory of their own.
    pub(crate) fn of_layout(pins: &Path, layout: u32) -> Result<Self, AttachError> {
        let netns_cookie =
            netns_cookie().map_err(AttachError::file("SO_NETNS_COOKIE", "this network namespace"))?;
        let place = Self { layout, ..Self::of(pins, netns_cookie) };
        place.check()?;
        Ok(place)
    }

    /// The place of the network namespace with this cookie.
    pub(crate) fn of(pins: &Path, netns_cookie: u64) -> Self {
        Self {
            pins: pins.to_owned(),
            root: pins.join(netns_cookie.to_string()),
            netns_cookie,
            layout: LAYOUT,
        }
    }

    /// Whether this path, or its nearest existing parent, is on a BPF file system.
    pub fn can_be_at(path: &Path) -> bool {
        let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        statfs(existing).is_ok_and(|found| u32::try_from(found.f_type) == Ok(trust::BPF_FS_MAGIC))
    }

    /// Whether the calling thread is in this network namespace.
    ///
    /// # Errors
    /// The namespace has no cookie.
    pub fn is_here(&self) -> Result<bool, AttachError> {
        let here = netns_cookie().map_err(AttachError::file("SO_NETNS_COOKIE", "this network namespace"))?;
        Ok(here == self.netns_cookie)
    }

    /// The kernel's cookie of this network namespace.
    pub fn netns_cookie(&self) -> u64 {
        self.netns_cookie
    }

    /// Whether anything is attached with this layout.
    pub fn exists(&self) -> Result<bool, AttachError> {
        Ok(!entries(&self.links())?.is_empty() || !entries(&self.maps())?.is_empty())
    }

    /// The directory of the pins.
    pub fn path(&self) -> PathBuf {
        self.root.join(self.layout.to_string())
    }

    /// The directory of all network namespaces.
    pub(crate) fn pins(&self) -> &Path {
        &self.pins
    }

    /// The directory of this network namespace, for all layouts.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn maps(&self) -> PathBuf {
        self.path().join("maps")
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.path().join("links")
    }

    /// Of directories that are nothing but locks: for each part of the tables, whose it is.
    pub(crate) fn shares(&self) -> PathBuf {
        self.path().join("shares")
    }

    /// Refuses what another version of truepeer, with other tables, has attached.
    ///
    /// # Errors
    /// [`AttachError::OtherLayout`]; the directory can't be read.
    pub fn check_version(&self) -> Result<(), AttachError> {
        let is_others = entries(&self.root)?.iter().any(|layout| *layout != self.path());
        if is_others { Err(AttachError::OtherLayout { path: self.root.clone() }) } else { Ok(()) }
    }

    /// Refuses directories in which another user could change what is pinned.
    fn check(&self) -> Result<(), AttachError> {
        [self.maps(), self.links()].iter().try_for_each(|directory| trust::check(directory))
    }

    /// Creates the directories. Fails if the file system can't hold pins, or if there are pins of another
    /// layout.
    pub(crate) fn make(&self) -> Result<(), AttachError> {
        if !Self::can_be_at(&self.root) {
            return Err(AttachError::NoBpfFilesystem { path: self.pins.clone() });
        }
        self.check_version()?;
        [self.path(), self.maps(), self.links()].iter().try_for_each(|directory| trust::make(directory))?;
        // Another user may have been faster.
        self.check()
    }

    /// Keeps other processes out until it is dropped. `None`: there is no directory, so nothing is attached.
    /// Only its owner can open it, so nobody else can hold the lock.
    pub(crate) fn lock(&self) -> Result<Option<impl Sized + use<>>, AttachError> {
        loop {
            let directory = match fs::File::open(self.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened.map_err(AttachError::file("open", self.path()))?,
            };
            flock(&directory, FlockOperation::LockExclusive)
                .map_err(|error| AttachError::file("flock", self.path())(error.into()))?;
            // A process that detaches removes the directory while others wait for its lock: they would hold
            // the lock of a directory that nobody else can find.
            let locked = directory.metadata().map(|found| identity(&found));
            if Some(locked.map_err(AttachError::file("stat", self.path()))?) == self.identity() {
                return Ok(Some(directory));
            }
        }
    }

    /// The device and inode of its directory, the same in whatever words it is named; `None`: nothing is
    /// attached.
    pub fn identity(&self) -> Option<(u64, u64)> {
        fs::metadata(self.path()).ok().map(|found| identity(&found))
    }

    /// Removes all pins, links first: programs must end before their tables. Among the links [`LAST_RITES`]
    /// comes first, so that after an interruption nothing waits for connections' ends (see [`crate::drain`])
    /// and the next removal can continue.
    pub(crate) fn remove(&self) -> Result<(), AttachError> {
        let (first, others): (Vec<_>, Vec<_>) =
            entries(&self.links())?.into_iter().partition(|pin| *pin == self.hook(LAST_RITES));
        unlink(first.into_iter().chain(others).chain(entries(&self.maps())?))?;
        rmdir(entries(&self.shares())?.into_iter().chain([self.shares()]))?;
        rmdir([self.links(), self.maps(), self.path(), self.root.clone()])
    }

    /// Removes all pins of a place that nobody uses. Whoever makes it anew meanwhile makes other directories,
    /// so first it gets another name.
    pub(crate) fn remove_aside(&self) -> Result<(), AttachError> {
        self.remove_rest()?;
        let aside = self.aside();
        fs::rename(&self.root, &aside.root).map_err(AttachError::file("rename", &self.root))?;
        aside.remove()
    }

    /// Removes what an interrupted [`Self::remove_aside`] has left.
    pub(crate) fn remove_rest(&self) -> Result<(), AttachError> {
        let aside = self.aside();
        if aside.root.exists() { aside.remove() } else { Ok(()) }
    }

    /// A BPF file system permits no name with a dot.
    fn aside(&self) -> Self {
        let root = self.pins.join(format!("{}-gone", self.netns_cookie));
        Self { root, ..self.clone() }
    }

    /// The pin of a hook's link.
    pub(crate) fn hook(&self, name: &str) -> PathBuf {
        self.links().join(name)
    }
}

/// The hook that reports the ends of connections.
pub(crate) const LAST_RITES: &str = "tcp_end";

/// Removes files in this order. Several processes may do so at the same time: missing files are fine.
pub(crate) fn unlink(files: impl IntoIterator<Item = PathBuf>) -> Result<(), AttachError> {
    files.into_iter().try_for_each(|file| unless_gone("unlink", &file, fs::remove_file(&file)))
}

/// The same for empty directories.
pub(crate) fn rmdir(directories: impl IntoIterator<Item = PathBuf>) -> Result<(), AttachError> {
    directories.into_iter().try_for_each(|path| unless_gone("rmdir", &path, fs::remove_dir(&path)))
}

fn unless_gone(what: &'static str, path: &Path, result: io::Result<()>) -> Result<(), AttachError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(AttachError::file(what, path)(error)),
        _ => Ok(()),
    }
}

/// The files in a directory; none if it doesn't exist.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, AttachError> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(AttachError::file("reading", directory)(error)),
        Ok(found) => Ok(found.flatten().map(|entry| entry.path()).collect()),
    }
}

fn identity(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut len = libc::socklen_t::try_from(size_of_val(&cookie)).unwrap_or_default();
    // SAFETY: the descriptor is open during the call. `cookie` and `len` are writable locals, and `len` is
    // the size of `cookie`, beyond which the kernel does not write.
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waits_for_the_lock_gets_that_of_the_directory_that_is_there_then() {
        let pins = std::env::temp_dir().join(format!("truepeer-lock-{}", std::process::id()));
        let place = Place::of(&pins, 1);
        assert!(place.lock().unwrap().is_none());
        fs::create_dir_all(place.path()).unwrap();
        for makes_it_anew in [true, false] {
            let (held, begun) = (place.lock().unwrap(), Barrier::new(2));
            thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    begun.wait();
                    place.lock().unwrap()
                });
                begun.wait();
                // Until it waits. If it is slower, it finds the other directory at once.
                thread::sleep(Duration::from_millis(200));
                fs::remove_dir(place.path()).unwrap();
                if makes_it_anew {
                    fs::create_dir(place.path()).unwrap();
                }
                drop(held);
                let lock = waits.join().unwrap();
                assert_eq!(lock.is_some(), makes_it_anew);
                if makes_it_anew {
                    let other = fs::File::open(place.path()).unwrap();
                    assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
                }
            });
        }
        fs::remove_dir_all(&pins).unwrap();
    }
}
