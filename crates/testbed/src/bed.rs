//! What a test holds in its hands: a private directory, and the programs that it started.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::enter::BEDS;
use crate::wait::wait_for;

/// How much of each log a failing test shows.
const TAIL_LINES: usize = 25;

/// One test's private bed. The test's thread is in a network namespace of its own with `lo` up, and has its own
/// mounts; so are the threads and programs that it starts.
#[derive(Debug)]
pub struct Bed {
    dir: PathBuf,
    names: AtomicUsize,
    /// Process groups to end when the test has run out of time.
    groups: Arc<Mutex<Vec<Pid>>>,
}

impl Bed {
    pub(crate) fn make(name: &str) -> anyhow::Result<Bed> {
        let dir = Path::new(BEDS).join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        fs::create_dir_all(dir.join("logs")).with_context(|| dir.display().to_string())?;
        Ok(Bed { dir, names: AtomicUsize::new(0), groups: Arc::default() })
    }

    /// A directory of this test's own, in memory, that any user may pass. It goes with the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file into [`Bed::dir`], directories included.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let file = self.dir.join(name);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Looks until `holds` does; fails after [`crate::PATIENCE`], naming `what` was waited for.
    pub fn wait_for(&self, what: &str, holds: impl FnMut() -> bool) -> anyhow::Result<()> {
        wait_for(what, holds)
    }

    /// A name that no other file or directory of this bed has.
    pub fn fresh_name(&self, stem: &str) -> String {
        format!("{:02}-{stem}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Where a program's output goes, without the suffix.
    pub(crate) fn log_base(&self, program: &str) -> PathBuf {
        self.dir.join("logs").join(self.fresh_name(program))
    }

    pub(crate) fn remember(&self, group: Pid) {
        self.lock_groups().push(group);
    }

    /// The programs to end, for those that end by themselves to be struck off.
    pub(crate) fn groups(&self) -> Arc<Mutex<Vec<Pid>>> {
        Arc::clone(&self.groups)
    }

    /// Ends all programs of a test that doesn't end by itself.
    pub(crate) fn kill_programs(&self) {
        for group in self.lock_groups().drain(..) {
            // One that has just ended by itself is what we want.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// The last lines of each program's output.
    pub(crate) fn tails(&self) -> String {
        let mut logs: Vec<PathBuf> = fs::read_dir(self.dir.join("logs"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        logs.sort();
        logs.iter().map(|log| tail(log)).collect()
    }

    pub(crate) fn remove(&self) {
        // It is memory of a mount that goes with the process: at worst it goes later.
        let _ = fs::remove_dir_all(&self.dir);
    }

    fn lock_groups(&self) -> std::sync::MutexGuard<'_, Vec<Pid>> {
        self.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return String::new();
    }
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    let shown = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    shown.iter().fold(format!("  -- {name}\n"), |text, line| text + "     " + line + "\n")
}
