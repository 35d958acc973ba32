//! The directory of certificates that an authority issues, with their keys. It is truepeer's alone.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};

use super::user::Found;

/// Held by the process that orders certificates. Its presence tells truepeer's directory from others.
const LOCK: &str = "truepeer.lock";

/// Makes the directory, and gives it and its files to the user that truepeer becomes.
///
/// Root without CAP_DAC_OVERRIDE may not write to a unit's StateDirectory=, which is that user's already:
/// [`keep`] makes the directory then.
///
/// # Errors
/// It can't be made, or it is another program's: keys and other files there must not change hands.
pub(super) fn prepare(dir: &Path, user: Found) -> io::Result<()> {
    match make(dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        made => made?,
    }
    let opened = open(dir)?;
    let own = rustix::fs::fstat(&opened)?;
    if !user.may_inherit_from(own.st_uid) {
        return Err(io::Error::other(format!("it belongs to user {}", own.st_uid)));
    }
    let files = files(&opened)?;
    if !files.is_empty() && files.iter().all(|(name, _)| name != LOCK) {
        return Err(io::Error::other("it has files of another program"));
    }
    for (name, file) in &files {
        // Another name of the same file could be anywhere.
        if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile || file.st_nlink != 1 {
            return Err(io::Error::other(format!("{name} is no file of truepeer's")));
        }
        give(&opened, name, file, user)?;
    }
    if own.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&opened, Mode::RWXU)?;
    }
    Ok(give(CWD, dir, &own, user)?)
}

/// Makes the directory if it is not there, and finds out whether files can be written there.
///
/// # Errors
/// They can't.
pub(super) fn keep(dir: &Path) -> io::Result<()> {
    make(dir)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(open(dir)?, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(())
}

/// For its owner alone. Others may pass through the directories above.
fn make(dir: &Path) -> io::Result<()> {
    let missing = |above: &&Path| !above.as_os_str().is_empty() && !above.exists();
    let above: Vec<_> = dir.ancestors().skip(1).take_while(missing).collect();
    for dir in above.into_iter().rev() {
        std::fs::create_dir(dir)?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn open(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

fn files(dir: &OwnedFd) -> io::Result<Vec<(String, Stat)>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            let file = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            files.push((entry.file_name().to_string_lossy().into_owned(), file));
        }
    }
    Ok(files)
}

fn give(dir: impl AsFd, name: impl rustix::path::Arg, file: &Stat, user: Found) -> rustix::io::Result<()> {
    if (Uid::from_raw(file.st_uid), Gid::from_raw(file.st_gid)) == (user.uid(), user.gid()) {
        return Ok(());
    }
    rustix::fs::chownat(dir, name, Some(user.uid()), Some(user.gid()), AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// The directory `state` below one of the test's own.
    fn place(name: &str) -> PathBuf {
        let above = std::env::temp_dir().join(format!("truepeer-state-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&above);
        above.join("lib/state")
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_is_made_for_its_owner_alone() {
        let dir = place("made");
        keep(&dir).unwrap();
        keep(&dir).unwrap();
        assert_eq!((mode(dir.parent().unwrap()), mode(&dir), mode(&dir.join(LOCK))), (0o755, 0o700, 0o600));
        std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
        std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
        symlink("/etc", &dir).unwrap();
        assert!(keep(&dir).is_err(), "a link");
        std::fs::remove_dir_all(dir.ancestors().nth(2).unwrap()).unwrap();
    }

    #[test]
    fn another_programs_directory_keeps_its_owner() {
        let dir = place("other");
        let user = Found::current();
        prepare(&dir, user).unwrap();
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.join("site.pem"), "").unwrap();
        let error = prepare(&dir, user).unwrap_err();
        assert_eq!((error.to_string().as_str(), mode(&dir)), ("it has files of another program", 0o755));
        keep(&dir).unwrap();
        prepare(&dir, user).unwrap();
        assert_eq!(mode(&dir), 0o700);
        std::fs::hard_link(dir.join("site.pem"), dir.with_file_name("elsewhere")).unwrap();
        assert!(prepare(&dir, user).unwrap_err().to_string().contains("site.pem is no file"));
        std::fs::remove_file(dir.join("site.pem")).unwrap();
        symlink("/etc/passwd", dir.join("site.pem")).unwrap();
        assert!(prepare(&dir, user).unwrap_err().to_string().contains("site.pem is no file"));
        std::fs::remove_dir_all(dir.ancestors().nth(2).unwrap()).unwrap();
    }
}
