//! Removes the libraries of older truepeer versions.
//!
//! A library may be removed once no process needs it. A process needs it if it has mapped it, or if its
//! environment names it: the next program it executes would load it. A process that can't be inspected may
//! need it, too, and so may one that can't be seen: then nothing is removed. A process that is about to start
//! is covered by the file's time, which every use renews.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;

/// Longer than any start takes. A day keeps versions that are used in turns.
const UNUSED: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes the libraries in `dir` that no process needs, except `current`. `dir` belongs to this user.
/// Failures are ignored.
pub(super) fn remove(dir: &Path, current: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut old: Vec<PathBuf> = files.filter(|file| file != current && is_old_library(file)).collect();
    // Walk through the processes only if there is something to remove.
    if old.is_empty() || !sees_all_processes() || !keep_unused(&mut old) {
        return;
    }
    for file in old {
        // A process may have started to use it meanwhile.
        if is_old_library(&file) {
            let _ = fs::remove_file(file);
        }
    }
}

fn is_old_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_unused = |modified: SystemTime| modified.elapsed().is_ok_and(|age| age >= UNUSED);
    name.starts_with("libtruepeer-")
        && fs::symlink_metadata(file).is_ok_and(|meta| meta.is_file() && meta.modified().is_ok_and(is_unused))
}

/// A container may share the directory with processes that it can't see.
fn sees_all_processes() -> bool {
    const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC; // the kernel's PROC_PID_INIT_INO
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST_PID_NAMESPACE)
}

/// Removes from `old` each library that a process needs. Returns false if that can't be determined.
fn keep_unused(libraries: &mut Vec<PathBuf>) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    for process in processes.filter_map(Result::ok) {
        if process.file_name().to_string_lossy().parse::<u32>().is_err() {
            continue;
        }
        for what in ["maps", "environ"] {
            match fs::read(process.path().join(what)) {
                Ok(text) => libraries.retain(|library| !mentions(&text, library)),
                // It has ended meanwhile.
                Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ESRCH)) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    if may_have_ours(&process.path()) {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
    }
    true
}

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;

/// A library can be in use by the user's own processes and, if root starts programs, by those of others. A
/// zombie uses nothing.
fn may_have_ours(process: &Path) -> bool {
    let us = geteuid();
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let has_ended = field("State:").starts_with(['Z', 'X']);
    let is_us = |user: &str| user == us.as_raw().to_string();
    !has_ended && (us.is_root() || field("Uid:").split_whitespace().any(is_us))
}

/// Compares by name, which identifies the contents. The mapped path may differ (symbolic links, other
/// mounts).
fn mentions(text: &[u8], library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().as_encoded_bytes();
    text.windows(name.len()).any(|window| window == name)
}
