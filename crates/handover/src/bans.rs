//! The bans that `truepeer ban --keep` writes to a list. The list is read again after each change.
//!
//! Each thread has its own copy, because a lock that another thread holds would stay locked in a child that
//! is forked meanwhile.

use core::cell::RefCell;
use core::time::Duration;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, stat};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::time::{ClockId, clock_gettime};
use truepeer_policy::{Ban, Bans, ClientAddr, KEPT_BANS};

/// How long a change of the list may go unnoticed.
pub const PERIOD: Duration = Duration::from_millis(250);

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// Whether a client is banned from a listener's port.
pub(crate) fn is_banned(client: ClientAddr, port: impl FnOnce() -> u16) -> bool {
    let has = |kept: &RefCell<Option<Kept>>| {
        // Taken already: a signal handler accepts, too.
        let Ok(mut kept) = kept.try_borrow_mut() else { return false };
        let bans = kept.get_or_insert_default().current(Path::new(KEPT_BANS), now(ClockId::Monotonic));
        !bans.is_empty() && bans.has(client, port())
    };
    // Err: the thread ends, and its copy is gone.
    KEPT.try_with(has).unwrap_or(false)
}

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The list as this thread knows it.
#[derive(Debug, Default)]
struct Kept {
    looked: Option<Duration>,
    version: Option<Version>,
    bans: Bans,
}

impl Kept {
    /// The bans of now. If the list can't be read any more (another root directory, a sandbox), those that
    /// were known stay.
    fn current(&mut self, list: &Path, now_monotonic: Duration) -> &Bans {
        if self.looked.is_none_or(|looked| looked + PERIOD <= now_monotonic) {
            self.looked = Some(now_monotonic);
            let found = stat(list).map(|found| Version::of(&found));
            if let Ok(version) = found
                && self.version != Some(version)
                && let Ok(text) = text_of(list, version)
            {
                let bans = Bans::default();
                // A line without an end is still being written.
                let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
                if bans.set(lines.filter_map(Ban::of_line).collect()).is_ok() {
                    (self.version, self.bans) = (Some(version), bans);
                }
            }
            self.bans.expire(now(ClockId::Realtime).as_secs());
        }
        &self.bans
    }
}

/// Tells two states of the list apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

impl Version {
    fn of(found: &Stat) -> Self {
        Self {
            device: found.st_dev,
            inode: found.st_ino,
            size: found.st_size,
            changed: (found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or_default()),
        }
    }
}

/// Everything in the list, if it is this version. A program may close descriptors that it has not opened, so
/// what was read is from the list only if the descriptor still is at the end.
fn text_of(list: &Path, version: Version) -> Result<String, Errno> {
    let file = open(list, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let mut text = Vec::new();
    // Not on the stack: a thread of the program may have a small one.
    let mut part = vec![0; 16384];
    loop {
        match retry_on_intr(|| read(&file, &mut part[..]))? {
            0 => break,
            count => text.extend_from_slice(&part[..count]),
        }
    }
    let found = fstat(&file)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || Version::of(&found) != version {
        return Err(Errno::AGAIN);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use truepeer_policy::{Ban, ClientAddr};

    use super::{Kept, PERIOD};

    fn ban(client: &str, until: Option<u64>) -> String {
        let ban = Ban {
            clients: client.parse().unwrap(),
            port: None,
            since: 1000,
            until,
            by: Some(0),
            why: "why".into(),
        };
        ban.line()
    }

    fn has(kept: &mut Kept, list: &Path, turn: u32, client: &str) -> bool {
        let client = ClientAddr::new(format!("{client}:5000").parse().unwrap());
        kept.current(list, PERIOD * turn).has(client, 443)
    }

    #[test]
    fn the_list_is_read_again_when_it_has_changed() {
        let list = std::env::temp_dir().join(format!("truepeer-run-bans-{}", std::process::id()));
        let mut kept = Kept::default();
        assert!(!has(&mut kept, &list, 1, "203.0.113.7"), "no list");
        fs::write(&list, ban("203.0.113.7", None)).unwrap();
        assert!(!has(&mut kept, &list, 1, "203.0.113.7"), "a moment ago there was none");
        assert!(has(&mut kept, &list, 2, "203.0.113.7"));
        assert!(!has(&mut kept, &list, 2, "203.0.113.8"));
        // Appended, the last line half.
        let more = ban("203.0.113.7", None) + &ban("203.0.113.8", Some(1_000_000)) + "203.0.113.9 - 1 - - ";
        fs::write(&list, more + "no ban\n203.0.113.1").unwrap();
        assert!(has(&mut kept, &list, 3, "203.0.113.7"));
        assert!(!has(&mut kept, &list, 3, "203.0.113.8"), "it has ended");
        assert!(has(&mut kept, &list, 3, "203.0.113.9") && !has(&mut kept, &list, 3, "203.0.113.1"));
        // Replaced.
        let new = list.with_extension("new");
        fs::write(&new, ban("203.0.113.8", None)).unwrap();
        fs::rename(&new, &list).unwrap();
        assert!(has(&mut kept, &list, 4, "203.0.113.8") && !has(&mut kept, &list, 4, "203.0.113.7"));
        fs::remove_file(&list).unwrap();
        assert!(has(&mut kept, &list, 5, "203.0.113.8"), "what was known stays");
    }
}
