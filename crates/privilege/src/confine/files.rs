//! Landlock: which files a process may open after its start.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};

use super::job::Job;

/// The newest ABI that was tried with this list of rules. Older kernels enforce less.
const TRIED: ABI = ABI::V7;

/// Names, certificates of the system, libraries of name services, the kernel's own files.
const READ: &[&str] =
    &["/usr", "/lib", "/lib64", "/proc", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom"];
/// Where resolv.conf leads to, and where name services listen.
const RESOLVERS: &[&str] = &[
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/run/connman",
    "/run/nscd",
    "/var/run/nscd",
];
/// The permitted files of /etc, if the process could read even secrets there. Otherwise all of /etc is
/// permitted, so that a replaced file is found again.
const ETC: &[&str] = &[
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/ssl/certs",
    "/etc/pki",
    "/etc/ca-certificates",
];
/// Routes can need some of these switches (sysctl).
const SWITCHES: &str = "/proc/sys/net";
/// The variables that name other authorities.
const AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What replacing a file takes.
const KEEP: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | RemoveFile});

/// Permits reading what a reload reads, and the admin sockets' directories. Returns a description.
///
/// # Errors
/// A description of what this kernel lacks.
pub(super) fn restrict(job: &Job, files: &[PathBuf], reads_everything: bool) -> Result<String, String> {
    said(try_restrict(job, files, reads_everything))
}

/// Permits the keeper the kernel's own files: the lists of sockets, and the switches of the network.
///
/// # Errors
/// A description of what this kernel lacks.
pub(super) fn restrict_keeper() -> Result<String, String> {
    let restrict = || -> Result<RulesetStatus, RulesetError> {
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(TRIED))?
            .scope(Scope::Signal)?
            .create()?
            .add_rules(path_beneath_rules(["/proc"], AccessFs::ReadFile | AccessFs::ReadDir))?
            .add_rules(path_beneath_rules([SWITCHES], AccessFs::WriteFile | AccessFs::Truncate))?;
        Ok(rules.restrict_self()?.ruleset)
    };
    said(restrict())
}

/// Permits the pins keeper to pin and remove in this directory, and the kernel's lists of devices.
///
/// # Errors
/// A description of what this kernel lacks.
pub(super) fn restrict_pins_keeper(pins: &Path) -> Result<String, String> {
    let restrict = || -> Result<RulesetStatus, RulesetError> {
        let pins_and_removes = AccessFs::ReadDir
            | AccessFs::RemoveFile
            | AccessFs::RemoveDir
            | AccessFs::MakeDir
            | AccessFs::MakeReg;
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(TRIED))?
            .scope(Scope::Signal)?
            .create()?
            .add_rules(path_beneath_rules([pins], pins_and_removes))?
            .add_rules(path_beneath_rules(["/proc"], AccessFs::ReadFile | AccessFs::ReadDir))?;
        Ok(rules.restrict_self()?.ruleset)
    };
    said(restrict())
}

/// Permits no file at all.
///
/// # Errors
/// A description of what this kernel lacks.
pub(super) fn restrict_to_none() -> Result<String, String> {
    let restrict = || -> Result<RulesetStatus, RulesetError> {
        let rules = Ruleset::default().handle_access(AccessFs::from_all(TRIED))?.scope(Scope::Signal)?;
        Ok(rules.create()?.restrict_self()?.ruleset)
    };
    said(restrict())
}

fn said(outcome: Result<RulesetStatus, RulesetError>) -> Result<String, String> {
    match outcome {
        Ok(RulesetStatus::NotEnforced) => {
            Err("Landlock: this kernel lacks it, or it is off (lsm=)".to_owned())
        }
        Ok(RulesetStatus::PartiallyEnforced) => Ok("files (Landlock, what this kernel has of it)".to_owned()),
        Ok(RulesetStatus::FullyEnforced) => Ok("files (Landlock)".to_owned()),
        Err(error) => Err(format!("Landlock: {error}")),
    }
}

fn try_restrict(job: &Job, files: &[PathBuf], reads_everything: bool) -> Result<RulesetStatus, RulesetError> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let etc: &[&str] = if reads_everything { ETC } else { &["/etc"] };
    let authorities = AUTHORITIES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TRIED))?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(READ.iter().chain(RESOLVERS).chain(etc), read))?
        .add_rules(path_beneath_rules(authorities, read))?
        .add_rules(path_beneath_rules(job.reads.iter().chain(files), read))?
        .add_rules(path_beneath_rules(&job.state, read | KEEP))?
        .add_rules(path_beneath_rules(&job.admin, read | AccessFs::MakeSock | AccessFs::RemoveFile))?;
    if job.changes_routes() {
        rules = rules
            .add_rules(path_beneath_rules([SWITCHES], read | AccessFs::WriteFile | AccessFs::Truncate))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
