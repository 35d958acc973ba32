//! Users that exist only in the bed, from a private `/etc/passwd` and `/etc/group`.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// The user who runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
}

impl User {
    /// The user who runs the bed.
    pub const ROOT: User = User { uid: 0, gid: 0 };
    /// A user without privileges and with a home directory, for logging in and for running truepeer.
    pub const TESTER: User = User { uid: 61000, gid: 61000 };

    /// A user of the bed's `/etc/passwd`, by name.
    pub fn named(name: &str) -> anyhow::Result<User> {
        let passwd = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name));
        let mut fields = line.with_context(|| format!("no user {name}"))?.split(':').skip(2);
        let mut number = || fields.next().and_then(|field| field.parse().ok());
        match (number(), number()) {
            (Some(uid), Some(gid)) => Ok(User { uid, gid }),
            _ => anyhow::bail!("the line of {name} in /etc/passwd is broken"),
        }
    }
}

/// The bed's tester's home.
pub(crate) const HOME: &str = "/run/testbed/home";

/// Users that the servers' packages create when installed.
const USERS: [(&str, u32); 9] = [
    ("tester", User::TESTER.uid),
    ("sshd", 61001),
    ("postgres", 61002),
    ("redis", 61003),
    ("haproxy", 61004),
    ("postfix", 61005),
    ("postdrop", 61006),
    ("dovecot", 61007),
    ("dovenull", 61008),
];

/// `/etc/passwd` with the bed's users added; existing ones stay unchanged.
pub(crate) fn passwd_with_ours(passwd: &str) -> String {
    with_missing(passwd, |name, id| format!("{name}:x:{id}:{id}::{HOME}:/bin/sh\n"))
}

/// The same for `/etc/group`.
pub(crate) fn group_with_ours(group: &str) -> String {
    with_missing(group, |name, id| format!("{name}:x:{id}:\n"))
}

fn with_missing(file: &str, line: impl Fn(&str, u32) -> String) -> String {
    let has = |name: &str| file.lines().any(|line| line.split(':').next() == Some(name));
    let mut text = file.trim_end().to_owned() + "\n";
    for (name, id) in USERS {
        if !has(name) {
            text += &line(name, id);
        }
    }
    text
}

/// Creates the tester's home directory.
pub(crate) fn make_home() -> anyhow::Result<()> {
    fs::create_dir_all(HOME).context(HOME)?;
    let User { uid, gid } = User::TESTER;
    std::os::unix::fs::chown(Path::new(HOME), Some(uid), Some(gid)).context(HOME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_users_are_added_and_present_ones_kept() {
        let text = passwd_with_ours("root:x:0:0::/root:/bin/sh\npostgres:x:101:102::/var:/bin/sh");
        assert!(text.contains("\npostgres:x:101:102::/var:/bin/sh\n"), "{text}");
        assert!(text.contains("\nsshd:x:61001:61001::"), "{text}");
        assert_eq!(text.matches("postgres:").count(), 1);
    }
}
