//! Moves the test process into private namespaces before anything else happens.
//!
//! ```text
//! test binary ──(not root: user namespace, maps by newuidmap)──> unshare: network, mounts, processes
//!      │ waits, returns its status                                          │ pid 1
//!      └───────────────── dies: all of it is killed ────────────> test binary again, "inside"
//! ```
//! The process namespace guarantees the cleanup: when its first process ends, everything in it ends.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use crate::userns::{self, Users};
use crate::{expose, harness, passwd, whereabouts};

/// Set for the process inside. Its value tells which users exist there.
pub(crate) const INSIDE: &str = "TRUEPEER_TESTBED_INSIDE";
/// The bed's private directory for everything that tests write.
pub(crate) const BEDS: &str = "/run/testbed/beds";

/// The namespaces, most private first. The second set is for containers that mask parts of `/proc`.
const NAMESPACES: [&[&str]; 2] = [
    &["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
    &["--net", "--mount", "--fork", "--kill-child"],
];

/// The result of entering.
pub(crate) enum Entry {
    /// This process is in private namespaces.
    Inside(Users),
    /// This process is outside and has run itself inside; this is the status of that run.
    Done(ExitCode),
    /// No namespaces are available here, for this reason.
    Impossible(String),
}

/// Call it before the process has a second thread: a process with two threads can't enter a user namespace.
pub(crate) fn enter() -> Entry {
    match env::var(INSIDE).ok().and_then(|users| Users::from_name(&users)) {
        Some(users) => {
            // A shell ignores some signals in programs that it runs in the background. Restore them, because
            // tests send signals.
            truepeer_sys::process::hear_ignored_signals();
            // Tests that run beside each other start programs, and read with time limits.
            truepeer_sys::process::block_child_signal();
            match furnish(users) {
                Ok(()) => Entry::Inside(users),
                Err(error) => Entry::Impossible(format!("can't create the private mounts: {error:#}")),
            }
        }
        None => from_outside(),
    }
}

fn from_outside() -> Entry {
    if whereabouts::find_program("ip").is_none() {
        return Entry::Impossible("the command ip is missing (package iproute2; make setup)".into());
    }
    let as_root = if geteuid().is_root() { usable_namespaces() } else { Err(anyhow::anyhow!("not root")) };
    let refusal = match as_root {
        Ok(namespaces) => return run_inside(namespaces, Users::of_this_namespace()),
        Err(error) => error,
    };
    match userns::become_root().and_then(|users| Ok((usable_namespaces()?, users))) {
        Ok((namespaces, users)) => run_inside(namespaces, users),
        Err(error) => Entry::Impossible(userns::explain(&format!("{refusal:#}; {error:#}"))),
    }
}

/// The first set of namespaces that this machine permits.
fn usable_namespaces() -> anyhow::Result<&'static [&'static str]> {
    let mut refusal = String::new();
    for namespaces in NAMESPACES {
        let probe = Command::new("unshare").args(namespaces).arg("true").output().context("unshare")?;
        if probe.status.success() {
            return Ok(namespaces);
        }
        refusal = String::from_utf8_lossy(&probe.stderr).trim().to_owned();
    }
    anyhow::bail!("{refusal}")
}

fn run_inside(namespaces: &[&str], users: Users) -> Entry {
    let status = env::current_exe().and_then(|exe| {
        Command::new("setpriv") // unshare ignores the keyboard's signals, but must end with this process
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(namespaces)
            .arg("--")
            .arg(exe)
            .args(env::args_os().skip(1))
            .env(INSIDE, users.name())
            .status()
    });
    match status {
        Ok(status) => {
            Entry::Done(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(101)))
        }
        Err(error) => Entry::Impossible(format!("setpriv or unshare can't be run: {error}")),
    }
}

/// Makes private what programs expect of a machine: `/run`, users, and servers that every user can reach.
fn furnish(users: Users) -> anyhow::Result<()> {
    ensure_new_network()?;
    harness::small_tables_within()?;
    let servers = whereabouts::servers_dir();
    let workspace = whereabouts::workspace_dir();
    anyhow::ensure!(!workspace.starts_with("/run"), "the workspace is below /run, which tests replace");
    mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=755")
        .context("mount tmpfs /run")?;
    for dir in [BEDS, "/run/sshd", "/run/lock"] {
        fs::create_dir_all(dir).context(dir)?;
    }
    if servers.exists() {
        expose::expose(&servers, Path::new(whereabouts::EXPOSED_SERVERS))?;
    }
    replace("/etc/passwd", passwd::passwd_with_ours)?;
    replace("/etc/group", passwd::group_with_ours)?;
    if users == Users::All {
        passwd::make_home()?;
    }
    raise_open_files()
}

/// As scripts/new-network.sh does. The variable [`INSIDE`] may be left in a shell, and then mounts would hide
/// the machine's own `/run`.
fn ensure_new_network() -> anyhow::Result<()> {
    let ip = whereabouts::find_program("ip").context("the command ip is missing")?;
    let up = Command::new(&ip)
        .envs(whereabouts::environment(&ip))
        .args(["-o", "link", "show", "up"])
        .output()
        .context("ip")?;
    let is_new = up.status.success() && up.stdout.is_empty();
    anyhow::ensure!(is_new, "{INSIDE} is set, but this is no new network namespace");
    Ok(())
}

/// Mounts an edited copy over a file, in the private mounts only.
fn replace(file: &str, edit: impl Fn(&str) -> String) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).context(file.to_owned())?;
    let copy = Path::new("/run/testbed").join(file.replace('/', "-"));
    fs::write(&copy, edit(&text)).with_context(|| copy.display().to_string())?;
    rustix::mount::mount_bind(&copy, file).with_context(|| format!("mount --bind over {file}"))
}

/// Tests open thousands of sockets.
fn raise_open_files() -> anyhow::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("setrlimit(NOFILE)")
}
