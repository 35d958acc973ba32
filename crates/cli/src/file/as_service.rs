//! Names the files that root can read, but the service can't: it sees no homes, and with a drop-in it may
//! start as another user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use truepeer_config::spec::defaults;

const UNIT: &str = "truepeer.service";
const UNIT_PLACES: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const SETTINGS: &str = "LoadState,ExecStartEx,DynamicUser,User,SupplementaryGroups,ProtectHome,PrivateTmp";
/// Where systemd puts the credentials of services, for their users.
const CREDENTIALS: &str = "/run/credentials";

/// Whether `path` is the file of an installed unit, and root asks, who may read everything.
pub(super) fn concerns(path: &Path) -> bool {
    rustix::process::geteuid().is_root()
        && path == Path::new(defaults::CONFIG)
        && UNIT_PLACES.iter().any(|place| Path::new(place).join(UNIT).exists())
}

/// A sentence for each file that the service can't read.
pub(super) fn unreadable(files: &[PathBuf]) -> Vec<String> {
    let shown = Command::new("systemctl").args(["show", "-p", SETTINGS, UNIT]).output();
    // Without systemd there is no drop-in: the unit is as packaged.
    let shown = shown.map(|shown| String::from_utf8_lossy(&shown.stdout).into_owned()).unwrap_or_default();
    let groups = group_numbers(setting(&shown, "SupplementaryGroups"));
    let obstacle = |file: &PathBuf| {
        let real = fs::canonicalize(file).ok().filter(|real| !real.starts_with(CREDENTIALS))?;
        hidden(&shown, file, &real)
            .or_else(|| if starts_as_root(&shown) { None } else { obstacle(file, &real, &groups) })
    };
    files.iter().filter_map(obstacle).collect()
}

fn setting<'a>(shown: &'a str, name: &str) -> &'a str {
    let of_name = |line: &'a str| line.strip_prefix(name)?.strip_prefix('=');
    shown.lines().find_map(of_name).unwrap_or_default()
}

fn is_loaded(shown: &str) -> bool {
    setting(shown, "LoadState") == "loaded"
}

/// Whether it reads its files as root, as packaged: by `ExecStart=!`. Drop-ins can change that.
fn starts_as_root(shown: &str) -> bool {
    let has_user =
        setting(shown, "DynamicUser") == "yes" || !matches!(setting(shown, "User"), "" | "root" | "0");
    let start = setting(shown, "ExecStartEx");
    !is_loaded(shown) || !has_user || start.contains("no-setuid") || start.contains("privileged")
}

/// The unit's own view of the file system has no homes and an own /tmp.
fn hidden(shown: &str, file: &Path, real: &Path) -> Option<String> {
    let is_below = |places: &[&'static str]| places.iter().copied().find(|place| real.starts_with(place));
    let applies = |name: &str| !is_loaded(shown) || !matches!(setting(shown, name), "no" | "read-only" | "");
    let (place, by) = is_below(&["/home", "/root", "/run/user"])
        .filter(|_| applies("ProtectHome"))
        .map(|place| (place, "ProtectHome=yes"))
        .or_else(|| {
            let place = is_below(&["/tmp", "/var/tmp"]).filter(|_| applies("PrivateTmp"))?;
            Some((place, "PrivateTmp=yes"))
        })?;
    Some(format!(
        "{}: {UNIT} does not see {place} ({by}); expected: a file elsewhere; \
         type: cp {} /etc/truepeer/, and name that one",
        file.display(),
        real.display(),
    ))
}

/// For a user in no group but `groups`.
fn obstacle(file: &Path, real: &Path, groups: &[u32]) -> Option<String> {
    let mut ways: Vec<&Path> = real.ancestors().collect();
    ways.reverse();
    let (closed, mode) = ways.into_iter().find_map(|way| {
        let status = fs::metadata(way).ok()?;
        let needed = if status.is_dir() { 0o1 } else { 0o4 };
        let group = if groups.contains(&status.gid()) { needed << 3 } else { 0 };
        (status.mode() & (needed | group) == 0).then_some((way, status.mode() & 0o7777))
    })?;
    let of = if closed == real { String::new() } else { format!(", since {} is closed", closed.display()) };
    let rights = if closed == real { "g+r" } else { "g+x" };
    Some(format!(
        "{}: the user of {UNIT} can't read it{of} (mode {mode:04o}); expected: a group of the service may; type: groupadd -f truepeer-files \
         && chgrp truepeer-files {closed} && chmod {rights} {closed}, and put SupplementaryGroups=truepeer-files below [Service] by \
         systemctl edit truepeer",
        file.display(),
        closed = closed.display(),
    ))
}

fn group_numbers(names: &str) -> Vec<u32> {
    let known = fs::read_to_string("/etc/group").unwrap_or_default();
    let number = |wanted: &str| {
        let line = known.lines().find(|line| line.split(':').next() == Some(wanted))?;
        line.split(':').nth(2)?.parse().ok()
    };
    names.split_whitespace().filter_map(|name| name.parse().ok().or_else(|| number(name))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PACKAGED: &str = "LoadState=loaded\nDynamicUser=yes\nUser=truepeer\n\
        ProtectHome=yes\nPrivateTmp=yes\n\
        ExecStartEx={ path=/usr/bin/truepeer ; argv[]=/usr/bin/truepeer serve ; flags=no-setuid ; pid=0 }\n";

    #[test]
    fn a_unit_that_drop_ins_make_root_is_told_from_the_packaged_one() {
        assert!(starts_as_root(PACKAGED));
        assert!(starts_as_root("") && starts_as_root("LoadState=not-found\nUser=\nDynamicUser=no\n"));
        assert!(starts_as_root("LoadState=loaded\nUser=\nDynamicUser=no\nSupplementaryGroups=\n"));
        assert!(starts_as_root("LoadState=loaded\nUser=root\n"));
        assert!(!starts_as_root(&PACKAGED.replace("no-setuid", "")));
        assert!(!starts_as_root("LoadState=loaded\nUser=truepeer\nDynamicUser=no\n"));
        assert_eq!(setting("User=a\nSupplementaryGroups=x y\n", "SupplementaryGroups"), "x y");
    }

    #[test]
    fn homes_and_temporary_files_are_hidden_from_the_service() {
        let says = |shown: &str, file: &str| hidden(shown, Path::new("./list"), Path::new(file));
        for shown in [PACKAGED, ""] {
            assert!(says(shown, "/root/site.key").unwrap().contains("does not see /root (ProtectHome=yes)"));
            assert!(says(shown, "/tmp/list").unwrap().contains("does not see /tmp (PrivateTmp=yes)"));
            assert_eq!(says(shown, "/etc/letsencrypt/archive/www/privkey1.pem"), None);
        }
        assert_eq!(says("LoadState=loaded\nProtectHome=read-only\nPrivateTmp=no\n", "/home/a/list"), None);
    }

    #[test]
    fn a_file_or_directory_that_is_closed_for_others_is_named() {
        let dir = std::env::temp_dir().join(format!("truepeer-as-service-{}", std::process::id()));
        let (closed, file) = (dir.join("archive"), dir.join("archive/site.key"));
        fs::create_dir_all(&closed).unwrap();
        fs::write(&file, "key").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&dir, 0o755);
        set(&closed, 0o755);
        set(&file, 0o644);
        assert_eq!(obstacle(&file, &file, &[]), None);
        set(&file, 0o640);
        let said = obstacle(&file, &file, &[]).unwrap();
        assert!(said.contains("can't read it (mode 0640)") && said.contains("chmod g+r"), "{said}");
        assert_eq!(obstacle(&file, &file, &[fs::metadata(&file).unwrap().gid()]), None);
        set(&closed, 0o700);
        let said = obstacle(&file, &file, &[]).unwrap();
        let directory = format!("since {} is closed (mode 0700)", closed.display());
        assert!(said.contains(&directory) && said.contains("chmod g+x"), "{said}");
        set(&closed, 0o755);
        fs::remove_dir_all(&dir).unwrap();
    }
}
