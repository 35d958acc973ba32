//! The private directory of a VPP that truepeer started: what is where, and whose it is.

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

/// A directory that only its owner may enter.
#[derive(Debug, Clone)]
pub(super) struct Place {
    dir: PathBuf,
}

/// The right to start and stop VPP there; given back when dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// What a path of a socket may have (sun_path, unix(7)), less its end, and less another one, which VPP counts in.
const MOST_SOCKET_BYTES: usize = 106;

impl Place {
    /// The one that is named, or the user's own.
    pub(super) fn of(named: Option<&Path>) -> Result<Self> {
        let dir = match named {
            Some(dir) => std::path::absolute(dir).with_context(|| dir.display().to_string())?,
            None => default_dir(),
        };
        let shown = dir.display();
        // The words of VPP's configuration files end there.
        let is_word =
            dir.to_str().is_some_and(|text| !text.contains(|c: char| c.is_whitespace() || "{}#".contains(c)));
        ensure!(is_word, "{shown}: VPP can't read a path with spaces, braces or #; name another with --dir");
        let socket = app_socket(&dir, "default").as_os_str().len();
        ensure!(
            socket <= MOST_SOCKET_BYTES,
            "{shown}: too long for the sockets in it; name another with --dir"
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

    /// What VPP says.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("vpp.log")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    pub(super) fn vcl(&self, namespace: &str, workers: Workers) -> PathBuf {
        self.dir.join(workers.file_name(namespace))
    }

    /// Makes it, or sees that it is private.
    pub(super) fn make(&self) -> Result<()> {
        self.make_own().with_context(|| self.dir.display().to_string())
    }

    fn make_own(&self) -> Result<()> {
        if let Some(parent) = self.dir.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Ok(()) => fs::set_permissions(&self.dir, Permissions::from_mode(0o700))?, // whatever the umask is
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        let meta = fs::symlink_metadata(&self.dir)?;
        ensure!(meta.is_dir() && meta.uid() == geteuid().as_raw(), "it is somebody else's");
        ensure!(meta.mode() & 0o077 == 0, "others may enter it: chmod 700 it, or name another with --dir");
        Ok(())
    }

    /// Keeps another `truepeer vpp up` or `down` away.
    pub(super) fn lock(&self) -> Result<Lock> {
        let file = File::create(self.dir.join("lock")).with_context(|| self.dir.display().to_string())?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                bail!("another truepeer vpp is at work in {}", self.dir.display())
            }
            Err(error) => Err(error).with_context(|| self.dir.display().to_string()),
        }
    }

    /// Removes sockets of a VPP that ended by itself: an old one would look like an answer.
    pub(super) fn clear_sockets(&self) {
        remove(&self.cli_socket());
        for name in ["stats.sock", "api.sock"] {
            remove(&self.dir.join(name));
        }
    }

    /// Removes what `up` and VPP put there, and nothing else.
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
        // Not empty: something else is in it, and stays.
        let _ = fs::remove_dir(self.dir.join("app_ns_sockets"));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// What can't be removed is in nobody's way: `up` writes it anew.
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
    fn what_vpp_can_not_read_is_refused() {
        for dir in ["/a b", "/a{b", "/a#b"] {
            let error = Place::of(Some(Path::new(dir))).unwrap_err().to_string();
            assert!(error.contains("--dir"), "{error}");
        }
        let long = format!("/{}", "x".repeat(90));
        assert!(Place::of(Some(Path::new(&long))).unwrap_err().to_string().contains("too long"));
        assert!(Place::of(Some(Path::new("/run/x"))).is_ok());
    }

    #[test]
    fn what_is_not_ours_stays() {
        let dir = env::temp_dir().join(format!("truepeer-vpp-place-{}", std::process::id()));
        let place = Place::of(Some(&dir)).unwrap();
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
        let error = format!("{:#}", Place::of(Some(&dir)).unwrap().make().unwrap_err());
        fs::remove_dir(&dir).unwrap();
        assert!(error.contains("chmod 700"), "{error}");
    }

    #[test]
    fn only_one_may_be_at_work() {
        let dir = env::temp_dir().join(format!("truepeer-vpp-lock-{}", std::process::id()));
        let place = Place::of(Some(&dir)).unwrap();
        place.make().unwrap();
        let lock = place.lock().unwrap();
        assert!(place.lock().unwrap_err().to_string().contains("at work"));
        drop(lock);
        assert!(place.lock().is_ok());
        place.clear();
    }
}
