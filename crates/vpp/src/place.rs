//! The private directory of a VPP that truepeer started: its paths and its owner.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, iter};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use super::layout::Layout;
use super::vcl::{Workers, app_socket};

/// A directory that only its owner can enter.
#[derive(Debug, Clone)]
pub(super) struct VppPlace {
    dir: PathBuf,
}

/// The right to start and stop VPP in this directory. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// The longest path of a socket (sun_path, unix(7)), without its terminator and one more byte that VPP counts.
const MOST_SOCKET_BYTES: usize = 106;

impl VppPlace {
    /// The named directory, or the user's default.
    pub(super) fn of(named: Option<&Path>) -> Result<Self> {
        let dir = match named {
            Some(dir) => std::path::absolute(dir).with_context(|| dir.display().to_string())?,
            None => default_dir(),
        };
        let shown = dir.display();
        // VPP's configuration parser splits at these characters.
        let is_word =
            dir.to_str().is_some_and(|text| !text.contains(|c: char| c.is_whitespace() || "{}#".contains(c)));
        ensure!(
            is_word,
            "{shown}: VPP can't read a path with spaces, braces or #; choose another with --dir"
        );
        let socket = app_socket(&dir, "default").as_os_str().len();
        ensure!(
            socket <= MOST_SOCKET_BYTES,
            "{shown}: too long for the sockets in it; choose another with --dir"
        );
        Ok(Self { dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn startup_conf(&self) -> PathBuf {
        self.dir.join("startup.conf")
    }

    pub(super) fn cli_socket(&self) -> PathBuf {
        self.dir.join("cli.sock")
    }

    /// The file of VPP's output.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("vpp.log")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    pub(super) fn vcl(&self, namespace: &str, workers: Workers) -> PathBuf {
        self.dir.join(workers.file_name(namespace))
    }

    /// Creates it, or checks that it is private.
    pub(super) fn make(&self) -> Result<()> {
        self.make_own().with_context(|| self.dir.display().to_string())
    }

    fn make_own(&self) -> Result<()> {
        if let Some(parent) = self.dir.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            // Sets the mode whatever the umask is.
            Ok(()) => fs::set_permissions(&self.dir, Permissions::from_mode(0o700))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        let meta = fs::symlink_metadata(&self.dir)?;
        ensure!(
            meta.is_dir() && meta.uid() == geteuid().as_raw(),
            "it belongs to another user; choose another with --dir"
        );
        ensure!(
            meta.mode() & 0o077 == 0,
            "other users can enter it: chmod 700 it, or choose another with --dir"
        );
        Ok(())
    }

    /// Keeps other `truepeer vpp up` and `down` processes out.
    pub(super) fn lock(&self) -> Result<Lock> {
        let file = File::create(self.dir.join("lock")).with_context(|| self.dir.display().to_string())?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                bail!("another truepeer vpp is working in {}; wait until it has ended", self.dir.display())
            }
            Err(error) => Err(error).with_context(|| self.dir.display().to_string()),
        }
    }

    /// Removes the sockets of a VPP that has crashed: their existence would look like readiness.
    pub(super) fn clear_sockets(&self) {
        remove(&self.cli_socket());
        for name in ["stats.sock", "api.sock"] {
            remove(&self.dir.join(name));
        }
    }

    /// Removes the files of `up` and VPP, and nothing else.
    pub(super) fn clear(&self) {
        let layouts =
            Layout::Loopback.namespaces().into_iter().chain(iter::once(super::layout::DEFAULT_NAMESPACE));
        for namespace in layouts {
            for workers in Workers::ALL {
                remove(&self.vcl(namespace, workers));
            }
            remove(&app_socket(&self.dir, namespace));
        }
        for file in [self.startup_conf(), self.cli_socket(), self.log(), self.state()] {
            remove(&file);
        }
        for name in ["stats.sock", "api.sock", "lock"] {
            remove(&self.dir.join(name));
        }
        // Not empty: it contains other files, which stay.
        let _ = fs::remove_dir(self.dir.join("app_ns_sockets"));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Failures are ignored: `up` rewrites the files.
fn remove(file: &Path) {
    let _ = fs::remove_file(file);
}

fn default_dir() -> PathBuf {
    let user = geteuid();
    if user.is_root() {
        return "/run/truepeer/vpp".into();
    }
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    match runtime {
        Some(dir) => dir.join("truepeer/vpp"),
        None => Path::new("/dev/shm").join(format!("truepeer-{}", user.as_raw())).join("vpp"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_vpp_cannot_parse_are_refused() {
        for dir in ["/a b", "/a{b", "/a#b"] {
            let error = VppPlace::of(Some(Path::new(dir))).unwrap_err().to_string();
            assert!(error.contains("--dir"), "{error}");
        }
        let long = format!("/{}", "x".repeat(90));
        assert!(VppPlace::of(Some(Path::new(&long))).unwrap_err().to_string().contains("too long"));
        assert!(VppPlace::of(Some(Path::new("/run/x"))).is_ok());
    }

    #[test]
    fn other_files_stay() {
        let dir = env::temp_dir().join(format!("truepeer-vpp-place-{}", std::process::id()));
        let place = VppPlace::of(Some(&dir)).unwrap();
        place.make().unwrap();
        fs::write(place.startup_conf(), "").unwrap();
        fs::write(dir.join("a-letter"), "").unwrap();
        place.clear();
        assert!(dir.join("a-letter").exists() && !place.startup_conf().exists());
        fs::remove_file(dir.join("a-letter")).unwrap();
        place.clear();
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let dir = env::temp_dir().join(format!("truepeer-vpp-open-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        let error = format!("{:#}", VppPlace::of(Some(&dir)).unwrap().make().unwrap_err());
        fs::remove_dir(&dir).unwrap();
        assert!(error.contains("chmod 700"), "{error}");
    }

    #[test]
    fn the_lock_is_exclusive() {
        let dir = env::temp_dir().join(format!("truepeer-vpp-lock-{}", std::process::id()));
        let place = VppPlace::of(Some(&dir)).unwrap();
        place.make().unwrap();
        let lock = place.lock().unwrap();
        assert!(place.lock().unwrap_err().to_string().contains("is working in"));
        drop(lock);
        assert!(place.lock().is_ok());
        place.clear();
    }
}
