//! A test's private directory, and the programs that it started.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::enter::BEDS;
use crate::wait::wait_for;

/// How many lines of each log a failing test shows.
const TAIL_LINES: usize = 25;

/// One test's private bed. The test's thread, and all threads and programs that it starts, share a network
/// namespace with `lo` up and private mounts.
#[derive(Debug)]
pub struct Bed {
    name: String,
    dir: PathBuf,
    names: AtomicUsize,
    /// The process groups to kill when the test has run out of time.
    groups: Arc<Mutex<Vec<Pid>>>,
    proxy_options: OnceLock<&'static [&'static str]>,
}

impl Bed {
    pub(crate) fn make(name: &str) -> anyhow::Result<Bed> {
        let dir = Path::new(BEDS).join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        fs::create_dir_all(dir.join("logs")).with_context(|| dir.display().to_string())?;
        let name = name.to_owned();
        Ok(Bed {
            name,
            dir,
            names: AtomicUsize::new(0),
            groups: Arc::default(),
            proxy_options: OnceLock::new(),
        })
    }

    /// The test's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The test's own directory, in memory. Any user may enter it. It is removed with the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file in [`Bed::dir`], and creates its directories.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let file = self.dir.join(name);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Waits until `holds` returns true. Fails after [`crate::WAIT_LIMIT`] with `what` in the message.
    pub fn wait_for(&self, what: &str, holds: impl FnMut() -> bool) -> anyhow::Result<()> {
        wait_for(what, holds)
    }

    /// Every `truepeer proxy` that is started in this bed from now on gets these options as well. Call it
    /// once.
    pub fn add_proxy_options(&self, options: &'static [&'static str]) {
        self.proxy_options.set(options).expect("set once");
    }

    pub(crate) fn proxy_options(&self) -> &'static [&'static str] {
        self.proxy_options.get().copied().unwrap_or_default()
    }

    /// How often the programs' logs contain this text.
    pub fn times_logged(&self, text: &str) -> usize {
        self.logs().iter().map(|log| read(log).matches(text).count()).sum()
    }

    /// The standard output of each program so far.
    pub fn outputs(&self) -> Vec<String> {
        let is_output = |log: &PathBuf| log.extension().is_some_and(|suffix| suffix == "out");
        self.logs().iter().filter(|log| is_output(log)).map(|log| read(log)).collect()
    }

    /// A name that no other file or directory of this bed has.
    pub fn fresh_name(&self, stem: &str) -> String {
        format!("{:02}-{stem}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// The path of a program's output, without the suffix.
    pub(crate) fn log_base(&self, program: &str) -> PathBuf {
        self.dir.join("logs").join(self.fresh_name(program))
    }

    pub(crate) fn remember(&self, group: Pid) {
        self.lock_groups().push(group);
    }

    /// The programs to kill. A program that ends by itself is removed.
    pub(crate) fn groups(&self) -> Arc<Mutex<Vec<Pid>>> {
        Arc::clone(&self.groups)
    }

    /// Kills all programs of a test that timed out.
    pub(crate) fn kill_programs(&self) {
        for group in self.lock_groups().drain(..) {
            // A program that has just ended is fine.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// The last lines of each program's output.
    pub(crate) fn tails(&self) -> String {
        let mut logs = self.logs();
        logs.sort();
        logs.iter().map(|log| tail(log)).collect()
    }

    fn logs(&self) -> Vec<PathBuf> {
        fs::read_dir(self.dir.join("logs"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default()
    }

    pub(crate) fn remove(&self) {
        // The mount disappears with the process, so a failure here only delays that.
        let _ = fs::remove_dir_all(&self.dir);
    }

    fn lock_groups(&self) -> std::sync::MutexGuard<'_, Vec<Pid>> {
        self.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn read(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn tail(log: &Path) -> String {
    let text = read(log);
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return String::new();
    }
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    let shown = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    shown.iter().fold(format!("  -- {name}\n"), |text, line| text + "     " + line + "\n")
}
