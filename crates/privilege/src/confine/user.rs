//! The user that a process becomes.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, geteuid};

use super::held;
use super::needs::{SET_GROUP, SET_USER, kernel};
use truepeer_config::spec::UserName;

/// The name of the user that a package creates.
const OWN: &str = "truepeer";
/// Numbers that systemd gives to services for as long as they run (DynamicUser=): no user owns files by them.
const DYNAMIC: std::ops::RangeInclusive<u32> = 61_184..=65_519;
/// The number that is tried first.
const FIRST: u32 = 61_823;

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    uid: u32,
    gid: u32,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl Found {
    pub(super) fn is_current(self) -> bool {
        geteuid().as_raw() == self.uid && getegid().as_raw() == self.gid
    }

    /// Whether a directory of `owner` may become its own: root's, or one of a user that exists only while a
    /// truepeer runs.
    pub(super) fn may_inherit_from(self, owner: u32) -> bool {
        owner == 0 || owner == self.uid || DYNAMIC.contains(&owner)
    }

    #[cfg(test)]
    pub(super) fn current() -> Self {
        Self { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    /// Whether it may create files in `dir`, by the directory's mode.
    pub(super) fn can_write(self, dir: &Path) -> bool {
        let Ok(found) = fs::metadata(dir) else { return false };
        let bit = match (found.uid() == self.uid, found.gid() == self.gid) {
            (true, _) => 0o300,
            (false, true) => 0o030,
            (false, false) => 0o003,
        };
        found.mode() & bit == bit
    }

    pub(super) fn uid(self) -> Uid {
        Uid::from_raw(self.uid)
    }

    pub(super) fn gid(self) -> Gid {
        Gid::from_raw(self.gid)
    }
}

/// Whether this process may become another user.
pub(super) fn can_change() -> bool {
    SET_USER.is_in(held(), kernel()) && SET_GROUP.is_in(held(), kernel())
}

/// The user of `--user`.
pub(super) fn find(name: &UserName) -> anyhow::Result<Found> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    match name {
        UserName::Number { uid, gid } => {
            let own = line_of(&passwd, 2, &uid.to_string()).map(|(_, gid)| gid);
            Ok(Found { uid: *uid, gid: gid.or(own).unwrap_or(*uid) })
        }
        UserName::Name(text) => {
            let (uid, gid) = line_of(&passwd, 0, text).with_context(|| {
                format!("--user {text}: /etc/passwd has no such user; expected another name, or UID[:GID]")
            })?;
            Ok(Found { uid, gid })
        }
    }
}

/// The user of the systemd unit, the user `truepeer`, or else a number that is nobody's.
///
/// # Errors
/// Why this process can't become one, in words.
pub(super) fn of_its_own() -> Result<Found, String> {
    if !can_change() {
        return Err("CAP_SETUID or CAP_SETGID is missing".to_owned());
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = line_of(&passwd, 0, OWN).map(|(uid, gid)| Found { uid, gid });
    let found = match of_unit().or(own) {
        Some(found) => found,
        None => free(&passwd, &fs::read_to_string("/etc/group").unwrap_or_default()),
    };
    let is_mapped = |file: &str, id: u32| fs::read_to_string(file).is_ok_and(|map| maps(&map, id));
    if is_mapped("/proc/self/uid_map", found.uid) && is_mapped("/proc/self/gid_map", found.gid) {
        Ok(found)
    } else {
        Err(format!("this user namespace has no user {}", found.uid))
    }
}

/// The owner of the unit's runtime directory. With `DynamicUser=` and `ExecStart=!` (systemd.service(5))
/// systemd gives it to a user that it keeps free for the unit, and the process has to become that user.
fn of_unit() -> Option<Found> {
    let directories = std::env::var_os("RUNTIME_DIRECTORY")?;
    let first = Path::new(&directories).to_str()?.split(':').next()?;
    let status = fs::metadata(first).ok()?;
    (status.uid() != 0).then_some(Found { uid: status.uid(), gid: status.gid() })
}

/// The user and group in the line of /etc/passwd whose field is `value`.
fn line_of(passwd: &str, field: usize, value: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find(|line| line.split(':').nth(field) == Some(value))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn free(passwd: &str, group: &str) -> Found {
    let is_taken = |id: u32| {
        let number = id.to_string();
        let has = |file: &str| file.lines().any(|line| line.split(':').nth(2) == Some(number.as_str()));
        has(passwd) || has(group) || Path::new("/run/systemd/dynamic-uid").join(&number).exists()
    };
    let id =
        (FIRST..=*DYNAMIC.end()).chain(*DYNAMIC.start()..FIRST).find(|id| !is_taken(*id)).unwrap_or(FIRST);
    Found { uid: id, gid: id }
}

/// Whether a map of user_namespaces(7) contains `id`.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\ntruepeer:x:990:991::/:/usr/sbin/nologin\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(line_of(PASSWD, 0, "truepeer"), Some((990, 991)));
        assert_eq!(line_of(PASSWD, 2, "990"), Some((990, 991)));
        assert_eq!(line_of(PASSWD, 0, "true"), None);
    }

    #[test]
    fn directories_of_accounts_are_not_inherited() {
        let found = Found { uid: 990, gid: 991 };
        assert!(found.may_inherit_from(0) && found.may_inherit_from(990) && found.may_inherit_from(FIRST));
        assert!(!found.may_inherit_from(1000));
    }

    #[test]
    fn a_free_number_is_nobodys() {
        assert_eq!(free(PASSWD, ""), Found { uid: FIRST, gid: FIRST });
        let taken = format!("{PASSWD}x:x:{FIRST}:1::/:/bin/sh\n");
        assert_eq!(free(&taken, "").uid, FIRST + 1);
        assert_eq!(free(&taken, &format!("g:x:{}:\n", FIRST + 1)).uid, FIRST + 2);
    }

    #[test]
    fn a_user_namespace_has_the_users_of_its_map() {
        assert!(maps("         0          0 4294967295\n", 61_823));
        assert!(maps("0 1000 1\n1 100000 65536\n", 61_823));
        assert!(!maps("0 1000 1\n", 61_823) && !maps("", 0));
    }
}
