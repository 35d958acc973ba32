//! Starts a new process in the place of a running one.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Starts `truepeer serve --take-over` in the background, and waits until it serves. Returns what it says.
///
/// # Errors
/// It has ended instead: the running process goes on.
pub(crate) fn upgrade(file: &Path) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("can't find this program's file")?;
    let mut new = Command::new(program)
        .args(["serve", "--take-over", "--config"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C in this terminal must not end it.
        .process_group(0)
        .spawn()
        .context("can't start the new process")?;
    let mut said = String::new();
    if let Some(stdout) = new.stdout.take() {
        BufReader::new(stdout).read_line(&mut said)?;
    }
    if said.is_empty() {
        let status = new.wait()?;
        bail!("not upgraded, the running truepeer goes on: the new process has ended ({status}), see above");
    }
    Ok(format!("process {} {}", new.id(), said.trim_end()))
}
