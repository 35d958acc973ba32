//! Checks that no other user can change what is pinned. A BPF file system may be writable by everybody: a
//! plain `mount -t bpf` has mode 1777.
//!
//! A user who owns a directory of the path, or may write to it, can move pins away or bring others. A user
//! who may read one can hold its lock (flock) for ever. So truepeer's directories have mode 700.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf, absolute};

use rustix::fs::{Mode, OFlags, open, statfs};
use rustix::process::geteuid;

use crate::error::AttachError;

/// `BPF_FS_MAGIC` (linux/magic.h).
pub(crate) const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

const OWNER_ONLY: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Refuses a path on a BPF file system if another user could change what is there. Checks each level of that
/// file system that exists, of the path as it is written and of the one that its links lead to. The levels
/// above don't matter: a mounted file system can't be moved.
///
/// # Errors
/// [`AttachError::Untrusted`] names the level.
pub(crate) fn check(path: &Path) -> Result<(), AttachError> {
    let path = absolute(path).map_err(AttachError::file("looking up", path))?;
    check_levels(&path)?;
    let real = without_links(&path).map_err(AttachError::file("looking up", &path))?;
    if real == path { Ok(()) } else { check_levels(&real) }
}

/// The path without links, as far as it exists.
fn without_links(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(error) };
            Ok(without_links(parent)?.join(name))
        }
        found => found,
    }
}

fn check_levels(path: &Path) -> Result<(), AttachError> {
    let is_bpf =
        |level: &Path| statfs(level).is_ok_and(|found| u32::try_from(found.f_type) == Ok(BPF_FS_MAGIC));
    let device = |level: &Path| fs::metadata(level).ok().map(|found| found.dev());
    let devices: Vec<u64> = path.ancestors().filter(|level| is_bpf(level)).filter_map(device).collect();
    for level in path.ancestors() {
        let Ok(found) = fs::symlink_metadata(level) else { continue };
        if !devices.contains(&found.dev()) {
            continue;
        }
        let is_top = level.parent().and_then(device) != Some(found.dev());
        if let Some(wrong) = wrong_with(&found, is_top) {
            return Err(AttachError::Untrusted { path: level.to_owned(), wrong });
        }
    }
    Ok(())
}

/// `may_be_shared`: others may make entries beside truepeer's, if the sticky bit keeps them from moving it.
fn wrong_with(found: &Metadata, may_be_shared: bool) -> Option<String> {
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    if !found.is_dir() {
        return Some("is no directory but a link or a file that somebody put there; remove it".to_owned());
    }
    if owner != 0 && owner != geteuid().as_raw() {
        return Some(format!(
            "belongs to user {owner}, who could move away what is pinned there; expected root or the user of this process; \
             look at it and remove it, or name another directory"
        ));
    }
    let is_shared = may_be_shared && mode & STICKY != 0;
    (mode & WRITABLE_BY_OTHERS != 0 && !is_shared).then(|| {
        format!("may be written by others (mode {mode:o}), who could move away what is pinned there; type: chmod go-w on it")
    })
}

/// Creates a directory and those above it that are missing, for their owner only. A directory that an earlier
/// version made with another mode gets this mode, too.
pub(crate) fn make(directory: &Path) -> Result<(), AttachError> {
    DirBuilder::new()
        .recursive(true)
        .mode(OWNER_ONLY)
        .create(directory)
        .map_err(AttachError::file("mkdir", directory))?;
    // Not by its path: another user could put a link in its place between two calls.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty());
    let opened = File::from(opened.map_err(|error| AttachError::file("open", directory)(error.into()))?);
    let found = opened.metadata().map_err(AttachError::file("stat", directory))?;
    if found.mode() & 0o777 != OWNER_ONLY && found.uid() == geteuid().as_raw() {
        let mode = Permissions::from_mode(OWNER_ONLY);
        opened.set_permissions(mode).map_err(AttachError::file("chmod", directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// On an ordinary file system, so `wrong_with` is called directly: `check` looks at BPF file systems
    /// only.
    #[test]
    fn links_and_what_others_may_write_are_refused() {
        let top = std::env::temp_dir().join(format!("truepeer-trust-{}", std::process::id()));
        let (own, shared) = (top.join("own"), top.join("shared"));
        make(&own).unwrap();
        make(&shared).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        symlink(&own, top.join("link")).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        let said = |path: &Path| wrong_with(&fs::symlink_metadata(path).unwrap(), false).unwrap_or_default();
        assert_eq!(said(&own), "");
        assert!(said(&top.join("link")).contains("is no directory"));
        assert!(said(&shared).contains("mode 1777"));
        assert_eq!(wrong_with(&fs::symlink_metadata(&shared).unwrap(), true), None);
        fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
        assert!(wrong_with(&fs::symlink_metadata(&shared).unwrap(), true).unwrap().contains("mode 777"));
        fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
        assert!(make(&top.join("link")).is_err());
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o755, "no link is followed");
        make(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        let top = top.canonicalize().unwrap();
        let through = without_links(&top.join("link/new/one")).unwrap();
        assert_eq!(through, top.join("own/new/one"));
        fs::remove_dir_all(&top).unwrap();
    }
}
