//! The preloaded library is embedded in this binary. The dynamic linker needs it as a file.
//!
//! A memfd would leave nothing behind, but the program's children load the library, too, under other users
//! and with other descriptors. So the library needs a path that all of them can read. It lies in a directory
//! of the user's own, under a name derived from its contents. The next `truepeer run` finds it there, and
//! removes those of older versions (`old`).
//!
//! In a directory that all users share, such as /tmp, another user may already have created our directory's
//! name. Then the directory gets a random name (mkdtemp(3)), and the next start recognises it by its owner.

mod old;
mod place;

use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::process::geteuid;

#[cfg(not(no_library))]
static LIBRARY: &[u8] = include_bytes!(env!("TRUEPEER_LIBRARY_FILE"));
#[cfg(no_library)]
static LIBRARY: &[u8] = &[];

/// Returns the path of the library, and writes the file if it is missing.
pub(super) fn unpacked() -> Result<PathBuf> {
    let bytes = contents()?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let name = format!("libtruepeer-{}-{:016x}.so", env!("CARGO_PKG_VERSION"), hasher.finish());
    let tried = match in_own_directory(|dir| put(dir, &name, bytes)) {
        Ok(file) => return Ok(file),
        Err(tried) => tried,
    };
    let noexec = place::SHARED.into_iter().find(|dir| is_noexec(Path::new(dir)) && is_writable(dir));
    let line = noexec.map_or_else(String::new, |dir| {
        format!(", or, in a systemd unit with NoExecPaths=, add the line ExecPaths={dir}")
    });
    bail!(
        "no directory to put the library in: {tried}; set XDG_RUNTIME_DIR to a directory that belongs to \
        you{line}"
    )
}

/// Tries the directories of this user until one serves. If none does, returns why not.
pub(super) fn in_own_directory<T>(put: impl Fn(&Path) -> io::Result<T>) -> std::result::Result<T, String> {
    let mut tried = Vec::new();
    for dir in place::all() {
        match place::make_own(&dir).and_then(|dir| put(&dir)) {
            Ok(done) => return Ok(done),
            Err(error) => tried.push(format!("{}: {error}", dir.display())),
        }
    }
    Err(tried.join("; "))
}

/// Writes the library to a file and replaces what was there.
pub(super) fn write(file: &Path) -> Result<()> {
    write_anew(file, contents()?).with_context(|| file.display().to_string())
}

fn contents() -> Result<&'static [u8]> {
    if LIBRARY.is_empty() {
        bail!("this truepeer was built without its library: only --via notify works");
    }
    Ok(LIBRARY)
}

fn put(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    if is_noexec(dir) {
        return Err(io::Error::other("it is mounted noexec, so no library can be loaded from it"));
    }
    let file = dir.join(name);
    // Renewing the time marks the file as used, so another version's truepeer keeps it. If it has just been
    // removed, write it again.
    let mark = || File::open(&file)?.set_modified(SystemTime::now());
    if mark().is_err() || !is_own_file(&file, bytes.len()) {
        write_anew(&file, bytes)?;
    }
    old::remove(dir, &file);
    Ok(file)
}

fn is_noexec(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|at| at.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn is_writable(dir: &str) -> bool {
    access(dir, Access::WRITE_OK).is_ok()
}

/// Only this user can have written the file. The name proves its contents, and the length proves that it is
/// complete.
fn is_own_file(file: &Path, len: usize) -> bool {
    fs::symlink_metadata(file).is_ok_and(|meta| {
        meta.is_file() && meta.uid() == geteuid().as_raw() && usize::try_from(meta.len()) == Ok(len)
    })
}

/// Writes under a temporary name and renames, so that no program loads a partial file.
fn write_anew(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = file.with_extension(format!("{}.new", process::id()));
    let mut out: File =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&unfinished)?;
    out.write_all(bytes)?;
    out.set_permissions(Permissions::from_mode(0o644))?;
    fs::rename(&unfinished, file)
}
