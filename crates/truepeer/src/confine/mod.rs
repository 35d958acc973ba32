//! Confinement: what each way needs, and a process that can do no more than that.
//!
//! ```text
//! start, one thread ─▶ user, capabilities ─▶ no_new_privs ─▶ Landlock: files ─▶ seccomp: system calls ─▶ listeners, workers
//! ```
//! All of it is per thread and inherited by the threads that a thread starts. So it comes before the first of them, and
//! the capabilities for ports below 1024 and for rules stay while a reload may need them.

mod calls;
mod capability;
mod files;
mod job;
pub(crate) mod needs;
mod privileges;
mod user;

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use crate::plan::{ConfineConfig, ProcessConfig};
use crate::spec::ConfineMode;

pub(crate) use capability::{Capability, held};
use job::Job;
use user::Found;

/// What was done, for the log.
#[derive(Debug, Default)]
pub(crate) struct Confined {
    done: Vec<String>,
    missing: Vec<String>,
}

/// Gives up what `process` does not need after its start. `files` are those that a reload reads.
///
/// # Errors
/// `--user` names a user that this process can't become. Anything else that is not possible here is left out, and
/// [`Confined::announce`] names it.
pub(crate) fn enter(process: &ProcessConfig, files: &[PathBuf]) -> anyhow::Result<Confined> {
    let config = &process.confine;
    let mut confined = Confined::default();
    if config.mode == ConfineMode::Off {
        return Ok(confined);
    }
    let job = Job::of(process, files);
    if let Some(reason) = obstacle(&job) {
        if let Some(user) = &config.user {
            bail!("--user {user}: {reason}");
        }
        confined.missing.push(format!("anything: {reason}"));
        return Ok(confined);
    }
    let user = find_user(config, &job, &mut confined)?;
    let outcome = privileges::reduce(&job, user, files).context("can't drop privileges")?;
    confined.done.extend(user.map(|user| format!("user {user}")));
    confined.done.push(format!("capabilities {}", Capability::names_in(outcome.kept)));
    confined.missing.extend(outcome.missing);
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        confined.missing.push(format!("no_new_privs, and with it seccomp and Landlock: {error}"));
        return Ok(confined);
    }
    match files::restrict(&job, files, outcome.reads_everything) {
        Ok(how) => confined.done.push(how),
        Err(missing) => {
            confined.missing.push(missing);
            if outcome.reads_everything {
                privileges::stop_reading(&job).context("can't drop privileges")?;
                confined.missing.push(
                    "the next reload: without Landlock no capability is kept to read root's files (name a \
                     user that may read them: --user)"
                        .to_owned(),
                );
            }
        }
    }
    match calls::restrict() {
        Ok(count) => confined.done.push(format!("{count} system calls")),
        Err(error) => confined.missing.push(format!("seccomp: {error:#}")),
    }
    Ok(confined)
}

/// Why this process can't be confined at all.
fn obstacle(job: &Job) -> Option<String> {
    if job.attaches {
        return Some("attach's pins and cgroups belong to root".to_owned());
    }
    // Another thread, such as one of a preloaded library, would keep every privilege.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    (threads != 1).then(|| format!("{threads} threads run already"))
}

/// The user to become, if any.
fn find_user(config: &ConfineConfig, job: &Job, confined: &mut Confined) -> anyhow::Result<Option<Found>> {
    if let Some(name) = &config.user {
        let found = user::find(name)?;
        if !found.is_current() && !user::can_change() {
            bail!(
                "--user {name}: only root, or a process with CAP_SETUID and CAP_SETGID, can become another user"
            );
        }
        return Ok((!found.is_current()).then_some(found));
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    match user::of_its_own() {
        Ok(found) => match job.admin.iter().find(|dir| !found.can_write(dir)) {
            None => Ok(Some(found)),
            Some(dir) => {
                let dir = dir.display();
                let missing = format!(
                    "a user of its own: the admin socket's directory {dir} must belong to it (chown {found} {dir})"
                );
                confined.missing.push(missing);
                Ok(None)
            }
        },
        Err(missing) => {
            confined.missing.push(format!("a user of its own: {missing}"));
            Ok(None)
        }
    }
}

impl Confined {
    /// Logs what was done in one line, and what is missing in another.
    pub(crate) fn announce(&self) {
        if !self.done.is_empty() {
            tracing::info!("confined: {}", self.done.join(", "));
        }
        if !self.missing.is_empty() {
            tracing::warn!("not confined by {} (--confine off accepts that)", self.missing.join("; "));
        }
    }
}
