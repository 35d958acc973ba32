//! Who else could change what is pinned: BPF file systems may be open to everybody (mode 1777, which a plain
//! `mount -t bpf` gives).
//!
//! Whoever owns a directory of the path, or may write to one, could move pins away, or bring pins of their own.
//! And whoever may read one could hold its lock (flock) for ever, so truepeer's directories are for their owner
//! only.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::statfs;
use rustix::process::geteuid;

use crate::error::AttachError;

/// `BPF_FS_MAGIC` (linux/magic.h).
pub(crate) const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

const OWNER_ONLY: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Refuses a path on a BPF file system if another user could change what is there. Levels that don't exist are
/// none, and above the file system's root nobody can move it, because it is mounted.
///
/// # Errors
/// [`AttachError::Untrusted`] names the level.
pub(crate) fn check(path: &Path) -> Result<(), AttachError> {
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

/// Creates a directory and those above it that are missing, for their owner only. One that an earlier version
/// made gets that mode, too.
pub(crate) fn make(directory: &Path) -> Result<(), AttachError> {
    DirBuilder::new()
        .recursive(true)
        .mode(OWNER_ONLY)
        .create(directory)
        .map_err(AttachError::file("mkdir", directory))?;
    let found = fs::symlink_metadata(directory).map_err(AttachError::file("stat", directory))?;
    if found.is_dir() && found.mode() & 0o777 != OWNER_ONLY && found.uid() == geteuid().as_raw() {
        fs::set_permissions(directory, Permissions::from_mode(OWNER_ONLY))
            .map_err(AttachError::file("chmod", directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// In any file system: levels are compared with the one that is named first.
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
        make(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        fs::remove_dir_all(&top).unwrap();
    }
}
