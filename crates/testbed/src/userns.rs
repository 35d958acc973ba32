//! A user namespace for callers who are not root: root inside, without privileges outside.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio, id};

use anyhow::Context;
use rustix::process::{getegid, geteuid};
use truepeer_sys::netns::enter_new_user_namespace;

use crate::passwd::User;
use crate::whereabouts;

pub(crate) const SEVERAL: &str =
    "needs several users: run as root, or install uidmap and have a line in /etc/subuid";

/// The users that exist in the bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Root, and the users that daemons switch to.
    All,
    /// Root only: the package uidmap is missing, or the caller's line in `/etc/subuid`.
    RootOnly,
}

impl Users {
    /// The users that root can become here. In a plain user's user namespace there is only root.
    pub(crate) fn of_this_namespace() -> Self {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        if counts.sum::<u64>() > 1 { Self::All } else { Self::RootOnly }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Users::All => "all",
            Users::RootOnly => "root-only",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Users> {
        [Users::All, Users::RootOnly].into_iter().find(|users| users.name() == name)
    }
}

/// Why a program that drops to another user can't run here, if it can't.
pub fn missing_users() -> Option<&'static str> {
    (Users::of_this_namespace() == Users::RootOnly).then_some(SEVERAL)
}

/// Moves this process, which must have one thread, into a user namespace in which it is root.
pub(crate) fn become_root() -> anyhow::Result<Users> {
    let caller = User { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    let mapper = start_mapper(caller);
    enter_new_user_namespace()?;
    if let Some(mapper) = mapper
        && finish_mapping(mapper)
    {
        return Ok(Users::All);
    }
    map_caller_only(caller)?;
    Ok(Users::RootOnly)
}

/// newuidmap must run outside of the namespace to write its maps. So it is started before, and waits for a
/// signal to proceed.
fn start_mapper(caller: User) -> Option<Child> {
    let (uids, gids) = (subordinates("/etc/subuid", caller.uid)?, subordinates("/etc/subgid", caller.uid)?);
    let (newuidmap, newgidmap) =
        (whereabouts::find_program("newuidmap")?, whereabouts::find_program("newgidmap")?);
    let map = |program: &std::path::Path, own: u32, (first, count): (u32, u32)| {
        format!("{} {} 0 {own} 1 1 {first} {count}", program.display(), id())
    };
    let script =
        format!("read go && {} && {}", map(&newuidmap, caller.uid, uids), map(&newgidmap, caller.gid, gids));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

fn finish_mapping(mut mapper: Child) -> bool {
    let told = mapper.stdin.take().is_some_and(|mut stdin| stdin.write_all(b"go\n").is_ok());
    mapper.wait().is_ok_and(|status| told && status.success())
}

/// The range of user ids assigned to the caller. The bed's own reach to 61008; `nobody` is 65534.
fn subordinates(file: &str, uid: u32) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let owner = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()))?;
    let name = owner.split(':').next()?;
    range_of(&fs::read_to_string(file).ok()?, name, uid).filter(|(_, count)| *count >= 65535)
}

fn range_of(file: &str, name: &str, uid: u32) -> Option<(u32, u32)> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let range = (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
        (owner == name || owner == uid.to_string()).then_some(range)
    })
}

/// Without help a process may map only itself, and must give up setgroups (user_namespaces(7)).
fn map_caller_only(caller: User) -> anyhow::Result<()> {
    fs::write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", caller.uid)).context("/proc/self/uid_map")?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", caller.gid)).context("/proc/self/gid_map")
}

/// Why no namespaces are available, and how to change that.
pub(crate) fn explain(refusal: &str) -> String {
    let is = |file: &str, value: &str| fs::read_to_string(file).is_ok_and(|text| text.trim() == value);
    let mend = if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "Ubuntu's AppArmor refuses namespaces to plain users: run as root, or once \
         `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "this kernel refuses namespaces to plain users: run as root, or once \
         `sudo sysctl kernel.unprivileged_userns_clone=1`"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "user namespaces are switched off: run as root, or once `sudo sysctl user.max_user_namespaces=10000`"
    } else {
        "run as root, or in a container with CAP_SYS_ADMIN"
    };
    format!("no private namespaces are available ({refusal}): {mend}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_name_or_number() {
        let file = "other:100000:65536\n1000:165536:65536\nme:231072:65536\n";
        assert_eq!(range_of(file, "me", 4), Some((231_072, 65536)));
        assert_eq!(range_of(file, "nobody", 1000), Some((165_536, 65536)));
        assert_eq!(range_of(file, "nobody", 4), None);
    }
}
