//! Bans that outlive a restart (`truepeer ban --keep`): a list that each truepeer with a configuration file,
//! and each attachment, reads when it starts. `truepeer run` follows it.
//!
//! A line is a ban. A later line about the same client replaces an earlier one, unless the earlier
//! one [outlasts](Ban::outlasts) it. So a ban costs one line, however long the list is.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::num::NonZeroU16;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use truepeer_policy::{Ban, BannedPrefix, KEPT_BANS};

/// Bytes. A longer list loses what has ended before more is written.
const LONG: u64 = 1 << 20;

type Key = (BannedPrefix, Option<NonZeroU16>);

/// The bans that are kept, but for those that have ended. `now`: in seconds since 1970.
///
/// # Errors
/// The list is there and can't be read, or a line of it is no ban.
pub fn kept_bans(now: u64) -> Result<Vec<Ban>> {
    let path = Path::new(KEPT_BANS);
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        text => parse(&text.with_context(|| format!("can't read {KEPT_BANS}"))?, now),
    }
}

/// The time, in seconds since 1970.
#[must_use]
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Keeps these, too.
///
/// # Errors
/// The list can't be written.
pub fn keep(bans: &[Ban], now: u64) -> Result<()> {
    let _lock = lock()?;
    let len = fs::metadata(KEPT_BANS).map_or(0, |found| found.len());
    if len > LONG || is_torn(Path::new(KEPT_BANS))? {
        replace(&kept_bans(now)?)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).open(KEPT_BANS)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file.write_all(bans.iter().map(Ban::line).collect::<String>().as_bytes())?)
}

/// Removes the bans for which `stays` is false. Returns how many.
///
/// # Errors
/// The list can't be written.
pub fn keep_only(now: u64, stays: impl Fn(&Ban) -> bool) -> Result<u64> {
    if kept_bans(now)?.iter().all(&stays) {
        return Ok(0);
    }
    let _lock = lock()?;
    let mut bans = kept_bans(now)?;
    let before = bans.len();
    bans.retain(stays);
    replace(&bans)?;
    Ok((before - bans.len()) as u64)
}

/// Whether the last line lacks its end (its writer was killed): the next one would become a part of it.
fn is_torn(list: &Path) -> io::Result<bool> {
    let list = match File::open(list) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        list => list?,
    };
    let (mut last, len) = ([b'\n'], list.metadata()?.len());
    if len > 0 {
        list.read_exact_at(&mut last, len - 1)?;
    }
    Ok(last != [b'\n'])
}

fn replace(bans: &[Ban]) -> Result<()> {
    let new = PathBuf::from(format!("{KEPT_BANS}.new"));
    let mut file = File::create(&new)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(bans.iter().map(Ban::line).collect::<String>().as_bytes())?;
    // Otherwise a loss of power may leave an empty list in its place.
    file.sync_all()?;
    Ok(fs::rename(&new, KEPT_BANS)?)
}

/// Keeps other processes from writing until it is dropped. Only root can open its file: otherwise any user
/// could hold the lock for ever.
fn lock() -> Result<File> {
    let directory = Path::new(KEPT_BANS).parent().unwrap_or(Path::new("/"));
    let context = || format!("can't keep bans in {}", directory.display());
    if !directory.exists() {
        DirBuilder::new().recursive(true).create(directory).with_context(context)?;
        // The umask may forbid others to read, and processes of other users read the list.
        fs::set_permissions(directory, Permissions::from_mode(0o755)).with_context(context)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let held = options.open(directory.join(".lock")).with_context(context)?;
    flock(&held, FlockOperation::LockExclusive).map_err(io::Error::from).with_context(context)?;
    Ok(held)
}

fn parse(text: &str, now: u64) -> Result<Vec<Ban>> {
    let mut all: BTreeMap<Key, Ban> = BTreeMap::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match Ban::of_line(line.trim_end_matches(['\n', '\r'])) {
            Some(ban) => {
                let key = (ban.clients, ban.port);
                if !all.get(&key).is_some_and(|known| known.outlasts(&ban)) {
                    all.insert(key, ban);
                }
            }
            // It is being written, or its writer was killed. The others count.
            None if !line.ends_with('\n') => {}
            None => bail!("{KEPT_BANS}, line {}: expected a ban", index + 1),
        }
    }
    Ok(all.into_values().filter(|ban| ban.until.is_none_or(|until| until > now)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_is_read_as_it_is_written_and_the_last_one_counts() {
        let ban = |clients: &str, port, until, by, why: &str| Ban {
            clients: clients.parse().unwrap(),
            port: NonZeroU16::new(port),
            since: 1000,
            until,
            by,
            why: why.into(),
        };
        let bans = [
            ban("192.0.2.7", 0, Some(2000), Some(0), "five wrong passwords"),
            ban("192.0.2.7", 443, None, None, ""),
            ban("2001:db8::/32", 0, None, Some(1000), "-"),
        ];
        let text: String = bans.iter().map(Ban::line).collect();
        assert_eq!(parse(&text, 1999).unwrap(), bans);
        assert_eq!(parse(&text, 2000).unwrap(), bans[1..]);
        let again = ban("192.0.2.7", 0, Some(3000), Some(0), "again");
        assert_eq!(parse(&(text.clone() + &again.line()), 1999).unwrap()[0], again);
        let shorter = ban("192.0.2.7", 0, Some(1999), Some(0), "by another, who lifts it earlier");
        assert_eq!(parse(&(text + &shorter.line()), 1998).unwrap(), bans);
        let error = parse("192.0.2.7 - 1 - - \nnobody\n", 0).unwrap_err().to_string();
        assert!(error.starts_with("/var/lib/truepeer-bans/list, line 2: expected a ban"), "{error}");
    }

    #[test]
    fn a_line_that_was_not_written_to_its_end_costs_no_other_ban() {
        let whole = "192.0.2.7 - 1 - - \n192.0.2.8 - 1 2000 0 why\n";
        let start_of_last = whole.find('\n').unwrap() + 1;
        let list = std::env::temp_dir().join(format!("truepeer-kept-{}", std::process::id()));
        for end in start_of_last..=whole.len() {
            let text = &whole[..end];
            let bans = parse(text, 0).unwrap();
            assert_eq!(bans[0].clients.to_string(), "192.0.2.7", "{text:?}");
            assert!(bans.len() == 1 || bans[1].until == Some(2000), "{text:?}");
            fs::write(&list, text).unwrap();
            assert_eq!(is_torn(&list).unwrap(), !text.ends_with('\n'), "{text:?}");
        }
        fs::write(&list, "").unwrap();
        assert!(!is_torn(&list).unwrap());
        fs::remove_file(&list).unwrap();
        assert!(!is_torn(&list).unwrap());
    }
}
