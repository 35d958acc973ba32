//! The library inside this binary, and the file that it has to be for the dynamic linker.
//!
//! A memfd would leave nothing behind, but programs that the program starts load the library, too, under other users and
//! with other descriptors: it has to have a path that all of them can read. So it is kept in a directory of our own, under a
//! name that tells its contents, and found there by the next `truepeer run`, which removes those of older versions (`old`).
//!
//! In a directory that all users share, such as /tmp, another user may have taken the name of ours. Then it gets a random name
//! beside it (mkdtemp(3)), which the next start finds by its owner.

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
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::geteuid;

#[cfg(not(no_library))]
static LIBRARY: &[u8] = include_bytes!(env!("TRUEPEER_LIBRARY_FILE"));
#[cfg(no_library)]
static LIBRARY: &[u8] = &[];

/// The path of the library, which is written if it isn't there yet.
pub(super) fn unpacked() -> Result<PathBuf> {
    let bytes = contents()?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let name = format!("libtruepeer-{}-{:016x}.so", env!("CARGO_PKG_VERSION"), hasher.finish());
    let mut tried = Vec::new();
    for dir in place::all() {
        match put(&dir, &name, bytes) {
            Ok(file) => return Ok(file),
            Err(error) => tried.push(format!("{}: {error}", dir.display())),
        }
    }
    bail!(
        "no directory to put the library in: {}; set XDG_RUNTIME_DIR to a directory of your own",
        tried.join("; ")
    )
}

/// Writes the library to a file, in place of what was there.
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
    let dir = &place::make_own(dir)?;
    if statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("nothing may be executed there (noexec)"));
    }
    let file = dir.join(name);
    // In use from now on: another version's truepeer leaves it there. What it has just removed is written anew.
    let mark = || File::open(&file)?.set_modified(SystemTime::now());
    if mark().is_err() || !is_own_file(&file, bytes.len()) {
        write_anew(&file, bytes)?;
    }
    old::remove(dir, &file);
    Ok(file)
}

/// Its name tells its contents, and only we can have written it: its length shows that it is whole.
fn is_own_file(file: &Path, len: usize) -> bool {
    fs::symlink_metadata(file).is_ok_and(|meta| {
        meta.is_file() && meta.uid() == geteuid().as_raw() && usize::try_from(meta.len()) == Ok(len)
    })
}

/// Under another name first, so that no program loads half of it.
fn write_anew(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = file.with_extension(format!("{}.new", process::id()));
    let mut out: File =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&unfinished)?;
    out.write_all(bytes)?;
    out.set_permissions(Permissions::from_mode(0o644))?;
    fs::rename(&unfinished, file)
}
