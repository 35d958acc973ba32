//! Starts a new process in the place of a running one.

use std::io::{self, BufRead as _, BufReader, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::process::{WaitOptions, waitpid};
use truepeer_sys::process::{Forked, fork};

use truepeer_config::plan::passed::{HANDED_ON, PassedNames, handed_on};
use truepeer_sys::tell;

/// systemd's identity of one run of a unit, in the environment of all its processes (systemd.exec(5)).
const INVOCATION_ID: &str = "INVOCATION_ID";

/// Asked for from a shell, the new process would be none of the unit's: with the shell's user and privileges,
/// and the unit would end with the old one.
///
/// # Errors
/// `running` is a unit's process, and this one is not.
pub(crate) fn refuse_outside_of_unit(running: u32) -> anyhow::Result<()> {
    // Without the right to read it, the new process could not take over either.
    let environment = std::fs::read(format!("/proc/{running}/environ")).unwrap_or_default();
    let unit = environment.split(|byte| *byte == 0).find_map(|line| {
        let (name, value) = line.split_at_checked(INVOCATION_ID.len() + 1)?;
        (name == b"INVOCATION_ID=").then(|| value.to_vec())
    });
    let own = std::env::var_os(INVOCATION_ID);
    match unit {
        Some(unit) if own.is_none_or(|own| own.as_encoded_bytes() != unit) => bail!(
            "not upgraded: process {running} is a service of systemd, and a process that is started here would run outside of its \
             unit; expected: systemctl reload truepeer, which upgrades if the program's file has changed"
        ),
        _ => Ok(()),
    }
}

/// Starts `truepeer serve --take-over` in the background, and waits until it serves. Returns what it says.
/// `passed`: the sockets of the running process that have names.
///
/// # Errors
/// It has ended instead: the running process goes on.
pub(crate) fn upgrade(file: &Path, passed: &PassedNames) -> anyhow::Result<String> {
    let (said, stdout) = io::pipe().context("pipe")?;
    // The new process must be nobody's child but init's when it calls itself the main one: systemd does not
    // wait for the end of a main process that is another's child, and would kill it at once.
    match fork()? {
        Forked::Child => {
            let started = start(file, passed, stdout);
            if let Err(failure) = &started {
                tell!("error: {failure:#}");
            }
            std::process::exit(i32::from(started.is_err()));
        }
        Forked::Parent(between) => {
            drop(stdout);
            waitpid(Some(between), WaitOptions::empty()).context("waitpid")?;
        }
    }
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    if line.is_empty() {
        bail!("not upgraded, the running truepeer goes on: the new process has ended, see above");
    }
    Ok(line.trim_end().to_owned())
}

fn start(file: &Path, passed: &PassedNames, stdout: PipeWriter) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("can't find this program's file")?;
    Command::new(program)
        .args(["serve", "--take-over", "--config"])
        .arg(file)
        .env(HANDED_ON, handed_on(passed))
        .stdin(Stdio::null())
        .stdout(stdout)
        // Ctrl-C in this terminal must not end it.
        .process_group(0)
        .spawn()
        .context("can't start the new process")?;
    Ok(())
}
