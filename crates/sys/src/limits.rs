//! Limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{CallError, Named};

/// Raises the soft limit of open files to the hard limit, and returns it.
///
/// # Errors
/// EPERM if the kernel refuses what it documents to allow.
pub fn raise_open_files() -> Result<u64, CallError> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .named("setrlimit(RLIMIT_NOFILE)")?;
    Ok(open_files())
}

/// The number of files that this process may have open.
#[must_use]
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
