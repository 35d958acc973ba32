//! Makes files accessible to other users: a bind mount under `/run/testbed`. The workspace may lie below a
//! directory (`/root`, a home) that only its owner can enter.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::mount_bind;

/// Mounts the directory or file `original` at `place` as well, in this thread's mounts.
pub(crate) fn expose(original: &Path, place: &Path) -> anyhow::Result<PathBuf> {
    if original.is_dir() {
        fs::create_dir_all(place).with_context(|| place.display().to_string())?;
    } else {
        File::create(place).with_context(|| place.display().to_string())?;
    }
    mount_bind(original, place)
        .with_context(|| format!("mount --bind {} {}", original.display(), place.display()))?;
    Ok(place.to_path_buf())
}
