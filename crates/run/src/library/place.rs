//! The directory of the library. It always belongs to this user, even if another user took the name first.

use std::env;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

/// Directories in which every user may create entries.
pub(super) const SHARED: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// The most lasting and most private place comes first. The dynamic linker can't load paths with spaces or
/// colons.
pub(super) fn all() -> Vec<PathBuf> {
    let user = geteuid();
    let mut places = Vec::new();
    if user.is_root() {
        places.push(PathBuf::from("/run/truepeer"));
    }
    let own = format!("truepeer-{}", user.as_raw());
    places.extend(env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("truepeer")));
    places.extend(SHARED.map(|dir| Path::new(dir).join(&own)));
    places.retain(|dir| dir.is_absolute() && !dir.to_string_lossy().contains([' ', ':', '\t']));
    places
}

/// Creates this directory, or one with a random name beside it if another user has taken the name. Returns
/// the one that this user owns. Others may read its files, but only this user can have created it or can put
/// a library there.
///
/// # Errors
/// The errors of mkdir(2) and stat(2), and a parent directory in which another user can replace entries.
pub(super) fn make_own(dir: &Path) -> io::Result<PathBuf> {
    let above = dir.parent().unwrap_or(Path::new("/"));
    check_above(above)?;
    match make(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map(|()| dir.to_owned()),
    }
    if is_own(dir) {
        return Ok(dir.to_owned());
    }
    let beside = format!("{}-", dir.file_name().unwrap_or_default().to_string_lossy());
    match find_own(above, &beside) {
        Some(found) => Ok(found),
        None => make_random(above, &beside),
    }
}

/// In a directory that belongs to others (XDG_RUNTIME_DIR after `sudo -E`), or that they can write to, only
/// the sticky bit prevents them from renaming our entries (chmod(1)).
fn check_above(above: &Path) -> io::Result<()> {
    const STICKY: u32 = 0o1000;
    const WRITTEN_BY_OTHERS: u32 = 0o022;
    const ROOT: u32 = 0;
    let meta = fs::metadata(above)?;
    let is_others = ![ROOT, geteuid().as_raw()].contains(&meta.uid()) || meta.mode() & WRITTEN_BY_OTHERS != 0;
    if !is_others || meta.mode() & STICKY != 0 {
        return Ok(());
    }
    let why = "other users can replace its entries: the directory is another user's, or is writable by \
        others, and is not sticky";
    Err(io::Error::other(why))
}

fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755)) // sets the mode whatever the umask is
}

fn is_own(dir: &Path) -> bool {
    fs::symlink_metadata(dir)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0)
}

/// Finds the directory that an earlier start created. Skips those of other users.
fn find_own(above: &Path, beginning: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(above).ok()?.filter_map(Result::ok);
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(beginning));
    named.map(|entry| entry.path()).find(|dir| is_own(dir))
}

/// No other user can take all names of 64 random bits beforehand.
fn make_random(above: &Path, beginning: &str) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let dir = above.join(format!("{beginning}{:016x}", u64::from_ne_bytes(random)));
    make(&dir)?;
    Ok(dir)
}
