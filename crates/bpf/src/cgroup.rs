//! Finds the root of the cgroup v2 hierarchy, and a cgroup's way from there.
//!
//! A mount of type cgroup2 is not enough: in a container, or where somebody has mounted a part of the
//! hierarchy, it shows one cgroup and those below it. Hooks there would miss the sockets of all other
//! processes: headers would be removed, and the server would see the sender.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::statfs;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use truepeer_sys::sock_diag::SockDiag;

use crate::error::AttachError;
use crate::pinned_link::cgroup_id;
use crate::place::Place;

/// `CGROUP2_SUPER_MAGIC` (linux/magic.h).
const CGROUP2_MAGIC: u32 = 0x6367_7270;

/// The root of the cgroup v2 hierarchy. Distributions mount it in different places. Where nobody has, as
/// behind `ip netns exec`, this process has a mount of its own, which no directory shows.
pub fn cgroup_root() -> Result<PathBuf, AttachError> {
    const MOUNTS: &str = "/proc/thread-self/mounts";
    let mounts = fs::read(MOUNTS).map_err(AttachError::file("reading", MOUNTS))?;
    let mounts: Vec<PathBuf> = mounts.split(|byte| *byte == b'\n').filter_map(mount_point).collect();
    // Another mount may cover one that is listed.
    let mounts: Vec<PathBuf> = mounts.into_iter().filter(|path| is_cgroup(path)).collect();
    if mounts.is_empty() { choose(vec![own_mount()?]) } else { choose(mounts) }
}

/// It ends with this process.
fn own_mount() -> Result<PathBuf, AttachError> {
    static MOUNT: OnceLock<OwnedFd> = OnceLock::new();
    let mounted = match MOUNT.get() {
        Some(mounted) => mounted,
        None => {
            let mounted = mount_detached().map_err(AttachError::mount("cgroup v2"))?;
            MOUNT.get_or_init(|| mounted)
        }
    };
    Ok(PathBuf::from(format!("/proc/self/fd/{}", mounted.as_raw_fd())))
}

/// Linux 5.2.
fn mount_detached() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// The number of the cgroup whose sockets an attachment covers (the inode of its directory), if it still
/// exists.
pub fn covered_cgroup(place: &Place) -> Option<u64> {
    cgroup_id(&place.hook("backstop")).ok().filter(|number| *number > 0)
}

/// The cgroups of an attachment. A cgroup has room for 64 hooks of a kind, not counting those of cgroups
/// below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    /// Hooks are attached to this one: the root, or a container's own cgroup. All sockets that serve attached
    /// ports must belong to it, or to one below it.
    pub all: PathBuf,
    /// The client is shown to sockets of this cgroup, of those below it, and of a cgroup that is made anew in
    /// its place (`c/attach/cgroup.h`).
    pub shown: PathBuf,
}

/// The named cgroup, as the programs know it: by numbers (`c/attach/cgroup.h`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Named {
    pub(crate) way: [u64; LEVELS],
    pub(crate) levels: u32,
    pub(crate) youngest: u64,
    pub(crate) has_hooks_inside: u32,
}

/// `CGROUP_LEVELS`.
const LEVELS: usize = 32;

impl Named {
    pub(crate) fn of(cgroups: &Cgroups) -> Result<Self, AttachError> {
        let root = cgroup_root()?;
        let shown = &cgroups.shown;
        let wanted = number(shown).map_err(AttachError::file("looking up the cgroup", shown))?;
        let mut named = Self::default();
        if number(&root).is_ok_and(|root| root == wanted) {
            return Ok(named);
        }
        // By their numbers: the hierarchy may be mounted several times.
        let all: Vec<(PathBuf, u64)> = cgroups_below(&root)
            .into_iter()
            .filter_map(|path| Some((path.clone(), number(&path).ok()?)))
            .collect();
        let path = all.iter().find(|(_, number)| *number == wanted).map(|(path, _)| path);
        let way = |path: &PathBuf| -> io::Result<Vec<u64>> {
            path.ancestors().take_while(|above| *above != root).map(number).collect()
        };
        let way = path.map(way).transpose().map_err(AttachError::file("looking up the cgroup", shown))?;
        let mut way = way.unwrap_or_default();
        way.reverse();
        if way.is_empty() || way.len() > LEVELS {
            let problem = format!("expected a cgroup at most {LEVELS} levels below {}", root.display());
            return Err(AttachError::file("looking up the cgroup", shown)(io::Error::other(problem)));
        }
        named.way[..way.len()].copy_from_slice(&way);
        named.levels = u32::try_from(way.len()).unwrap_or_default();
        // A cgroup that has been removed lives on, with its number, while it has sockets.
        let listeners = SockDiag::open().and_then(|mut kernel| kernel.listeners()).unwrap_or_default();
        let of_sockets = listeners.into_iter().filter_map(|listener| listener.cgroup);
        named.youngest = all.iter().map(|(_, number)| *number).chain(of_sockets).max().unwrap_or_default();
        named.has_hooks_inside =
            number(&cgroups.all).is_ok_and(|all| number(&root).is_ok_and(|root| all != root)).into();
        Ok(named)
    }
}

fn number(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.ino())
}

/// A cgroup and all below it.
pub fn cgroups_below(cgroup: &Path) -> Vec<PathBuf> {
    let mut all = vec![cgroup.to_owned()];
    let mut next = 0;
    while let Some(path) = all.get(next) {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let below: Vec<_> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        all.extend(below);
        next += 1;
    }
    all
}

/// The cgroups that exist. The hierarchy is read at most once.
#[derive(Debug, Default)]
pub struct Living(OnceCell<Option<BTreeSet<u64>>>);

impl Living {
    /// Whether the hooks of an attachment have ended with their cgroup. The link still has the cgroup's
    /// number while that has sockets, so the number is looked for among those that exist.
    pub(crate) fn is_cgroup_gone(&self, place: &Place) -> bool {
        let Ok(wanted) = cgroup_id(&place.hook("backstop")) else { return false };
        let read = || {
            let all = cgroups_below(&cgroup_root().ok()?);
            Some(all.iter().filter_map(|path| number(path).ok()).collect())
        };
        self.0.get_or_init(read).as_ref().is_some_and(|all: &BTreeSet<u64>| !all.contains(&wanted))
    }
}

/// Whether this is a directory of the cgroup v2 hierarchy.
pub fn is_cgroup(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| u32::try_from(found.f_type) == Ok(CGROUP2_MAGIC))
}

/// The first that is the root.
fn choose(mounts: Vec<PathBuf>) -> Result<PathBuf, AttachError> {
    let path = mounts.first().cloned().unwrap_or_default();
    mounts.into_iter().find(|path| is_root(path)).ok_or(AttachError::NoCgroupRoot { path })
}

/// Every cgroup but the root has a type (Documentation/admin-guide/cgroup-v2.rst: "exists on non-root
/// cgroups").
fn is_root(path: &Path) -> bool {
    path.join("cgroup.type").try_exists().is_ok_and(|exists| !exists)
}

/// Where a line of /proc/mounts mounts cgroup2, if it does.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let path = fields.nth(1)?;
    (fields.next()? == b"cgroup2").then(|| PathBuf::from(OsString::from_vec(unescaped(path))))
}

/// Spaces, tabs, newlines and backslashes are written as three octal digits (mangle() in
/// fs/proc_namespace.c).
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| std::str::from_utf8(behind.get(..3)?).ok()).flatten();
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &behind[3..];
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_spaces() {
        let of = |line: &str| mount_point(line.as_bytes());
        assert_eq!(of(r"cgroup2 /a\040b\134c cgroup2 rw 0 0"), Some(PathBuf::from(r"/a b\c")));
        assert_eq!(of("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0"), None);
        assert_eq!(of(r"x /end\04 cgroup2 rw"), Some(PathBuf::from(r"/end\04")));
        assert_eq!(of(""), None);
    }
}
