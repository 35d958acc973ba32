//! Notices that a file of the configuration has changed (`reload-on-change`).
//!
//! It looks at each file once a second instead of waiting for the kernel's events: that works on every file
//! system and through links, and the look is needed anyway, to know when a file that is still being written
//! has settled.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the files are looked at, and how long a change must have settled.
const INTERVAL: Duration = Duration::from_secs(1);
/// The kernel keeps times of files in steps; those of its timer are 10 ms at most.
const TIME_STEP: Duration = Duration::from_millis(100);

/// The files of the running configuration.
#[derive(Debug)]
pub(super) struct Changes {
    files: Vec<PathBuf>,
    /// As they were read, whatever came of it.
    known: Look,
    /// Differs from what is known, and may not have settled.
    pending: Option<Look>,
    next: Instant,
}

/// A file that is not known for certain has no entry.
type Look = BTreeMap<PathBuf, Option<Stamp>>;

/// What changes with a file's content. An editor that renames gives it another inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Changes {
    /// `began`: when reading `files` began.
    pub(super) fn of(files: &[PathBuf], began: SystemTime, now: Instant) -> Self {
        let mut known = look(files);
        let settled = began.checked_sub(TIME_STEP).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let settled = settled.unwrap_or_default();
        let settled =
            (i64::try_from(settled.as_secs()).unwrap_or(i64::MAX), i64::from(settled.subsec_nanos()));
        known.retain(|_, stamp| stamp.is_none_or(|stamp| stamp.changed < settled));
        Self { files: files.to_vec(), known, pending: None, next: now + INTERVAL }
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Instant {
        self.next
    }

    /// Whether something has changed and settled. Says so once for each change.
    pub(super) fn are_due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + INTERVAL;
        let seen = look(&self.files);
        if seen == self.known {
            self.pending = None;
            return false;
        }
        if self.pending.as_ref() != Some(&seen) {
            self.pending = Some(seen);
            return false;
        }
        self.known = seen;
        self.pending = None;
        true
    }
}

fn look(files: &[PathBuf]) -> Look {
    files.iter().map(|file| (file.clone(), stamp(file))).collect()
}

/// `None`: it is not there, or can't be looked at.
fn stamp(file: &Path) -> Option<Stamp> {
    let of = std::fs::metadata(file).ok()?;
    Some(Stamp {
        file: (of.dev(), of.ino()),
        size: of.size(),
        modified: (of.mtime(), of.mtime_nsec()),
        changed: (of.ctime(), of.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process's directory is unique, and each test's file, too.
    fn file(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("truepeer-changes-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir.join(name)
    }

    fn later() -> SystemTime {
        SystemTime::now() + 10 * TIME_STEP
    }

    #[test]
    fn a_change_is_due_once_after_it_has_settled() {
        let path = file("settled");
        std::fs::write(&path, "one").unwrap();
        let start = Instant::now();
        let mut changes = Changes::of(std::slice::from_ref(&path), later(), start);
        let at = |seconds: u32| start + seconds * INTERVAL;
        assert!(!changes.are_due(at(1)));
        std::fs::write(&path, "half").unwrap();
        assert!(!changes.are_due(at(2)), "it may still be written");
        std::fs::write(&path, "whole text").unwrap();
        assert!(!changes.are_due(at(3)), "it has changed again");
        assert!(changes.are_due(at(4)));
        assert!(!changes.are_due(at(5)), "it was said");
        // As an editor does: a new file in the place of the old one.
        let new = path.with_extension("new");
        std::fs::write(&new, "whole text").unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert!(!changes.are_due(at(6)) && changes.are_due(at(7)));
        std::fs::remove_file(&path).unwrap();
        assert!(!changes.are_due(at(8)) && changes.are_due(at(9)) && !changes.are_due(at(10)));
    }

    /// A change between the read and the first look can't be seen, so it is assumed.
    #[test]
    fn a_file_that_was_written_while_it_was_read_is_read_again() {
        let path = file("meanwhile");
        let began = SystemTime::now();
        std::fs::write(&path, "one").unwrap();
        let start = Instant::now();
        let mut changes = Changes::of(&[path], began, start);
        assert!(!changes.are_due(start + INTERVAL) && changes.are_due(start + 2 * INTERVAL));
        assert!(!changes.are_due(start + 3 * INTERVAL));
    }

    #[test]
    fn it_looks_once_in_an_interval() {
        let path = file("interval");
        let start = Instant::now();
        let mut changes = Changes::of(std::slice::from_ref(&path), later(), start);
        std::fs::write(&path, "one").unwrap();
        assert!(!changes.are_due(start) && !changes.are_due(start + INTERVAL));
        assert!(!changes.are_due(start + INTERVAL) && changes.next_look() == start + 2 * INTERVAL);
    }
}
