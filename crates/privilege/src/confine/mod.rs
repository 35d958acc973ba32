//! Confinement: what each way needs, and a process that can do no more than that.
//!
//! ```text
//! start, one thread ─▶ user, capabilities ─▶ no_new_privs ─▶ Landlock: files ─▶ seccomp: system calls ─▶ listeners, workers
//!             ├─fork─▶ the same, for the keeper ─▶ rules, routes and buffers, by CAP_NET_ADMIN
//!             ├─fork─▶ the same, with --splice, for another one ─▶ sockets under repair, by CAP_NET_ADMIN
//!             ├─fork─▶ with --splice, one that keeps its user ─▶ programs to new devices; removes them
//!             └─fork─▶ with [[attach]], another one, which gives up nothing ─▶ kernel programs
//! ```
//! All of it is per thread and inherited by the threads that a thread starts. So it comes before the first of
//! them, and the capability for ports below 1024 stays while a reload may need it. Rules and buffers are the
//! [keeper](crate::keeper)'s.

mod calls;
mod capability;
mod files;
mod job;
pub mod needs;
mod privileges;
mod state;
mod user;

use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use rustix::thread::CapabilitySet;

use crate::keeper::{Keeper, Permitted, PinsKeeper, RepairKeeper};
use truepeer_config::plan::{ConfineConfig, ProcessConfig};
use truepeer_config::spec::{AdminAddr, ConfineMode};

pub use capability::{Capability, held};
use job::Job;
use needs::{ROUTES, SPLICE_NET, kernel};
use user::Found;

/// What a process is about to give up.
pub struct Plan<'a> {
    process: &'a ProcessConfig,
    files: &'a [PathBuf],
    job: Job,
    user: Option<Found>,
    is_on: bool,
    confined: Confined,
}

/// What was given up.
#[derive(Debug, Default)]
pub struct Confined {
    done: Vec<String>,
    missing: Vec<String>,
    /// The capabilities of before and after; `None`: all were kept.
    reduced: Option<(CapabilitySet, CapabilitySet)>,
    limits_files: bool,
    has_keeper: bool,
    has_attach_keeper: bool,
    /// Where certificates of an authority are kept.
    state: Option<PathBuf>,
}

impl<'a> Plan<'a> {
    /// Finds out what `process` does not need after its start. `files` are those that a reload reads.
    /// `grows`: a reload may add listeners.
    ///
    /// # Errors
    /// `--user` names a user that this process can't become.
    pub fn of(process: &'a ProcessConfig, files: &'a [PathBuf], grows: bool) -> anyhow::Result<Self> {
        let config = &process.confine;
        let job = Job::of(process, files, grows);
        let is_on = config.mode != ConfineMode::Off;
        let mut plan = Self { process, files, job, user: None, is_on, confined: Confined::default() };
        if !is_on {
            return Ok(plan);
        }
        if let Some(reason) = obstacle() {
            if let Some(user) = &config.user {
                bail!("--user {user}: {reason}");
            }
            plan.confined.missing.push(format!("anything: {reason}"));
            plan.is_on = false;
            return Ok(plan);
        }
        plan.user = find_user(config, &mut plan.confined)?;
        Ok(plan)
    }

    /// The admin sockets in directories in which the other user can create none: they must be opened before.
    pub fn sockets_ahead(&self) -> Vec<&'a AdminAddr> {
        let Some(user) = &self.user else { return Vec::new() };
        let is_ahead =
            |address: &&AdminAddr| address.path().is_some_and(|path| !user.can_write(&job::directory(path)));
        self.process.admin.listen.iter().filter(is_ahead).collect()
    }

    /// Notes whether the process has the tables of spliced sessions. Without them it keeps no privilege for
    /// them.
    pub fn has_splice_tables(&mut self, has: bool) {
        self.job.has_splice_tables(has);
    }

    /// Notes whether the process has tables of UDP flows that leave user space.
    pub fn has_flow_tables(&mut self, has: bool) {
        self.job.offloads = has;
    }

    /// Starts the process that changes rules and grows buffers for this one, which then keeps no capability
    /// for that. Without it, this process keeps the capability. `sessions_go_on`: asked when this process has
    /// ended without a word. Sessions that go on in the kernel need the rules.
    pub fn start_keeper(
        &mut self,
        permitted: Permitted,
        sessions_go_on: impl Fn() -> bool + 'static,
    ) -> Option<Keeper> {
        if !self.is_on || !self.job.can_use_keeper() || !ROUTES.is_in(held(), kernel()) {
            return None;
        }
        let user = self.user;
        // With --routes manual, rules are none of its business.
        let are_others = !self.job.routes;
        let rules_stay = Box::new(move || are_others || sessions_go_on());
        match Keeper::start(permitted, rules_stay, || confine_keeper(user)) {
            Ok((keeper, missing)) => {
                let missing = missing.into_iter().map(|missing| format!("the keeper: {missing}"));
                self.confined.missing.extend(missing);
                self.job.has_keeper = true;
                self.confined.has_keeper = true;
                keeper.share_ports();
                keeper.grow_buffers();
                keeper.listen();
                Some(keeper)
            }
            Err(error) => {
                self.confined
                    .missing
                    .push(format!("a process of its own for rules, routes and buffers: {error:#}"));
                None
            }
        }
    }

    /// Starts the attach keeper, if this process has `[[attach]]` and is about to give up what that needs.
    ///
    /// # Errors
    /// That of `start`.
    pub fn start_attach_keeper<T>(
        &mut self,
        start: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        if !self.is_on || !self.job.attaches {
            return Ok(None);
        }
        let keeper = start().context("can't start a process of its own for [[attach]]")?;
        self.confined.has_attach_keeper = true;
        Ok(Some(keeper))
    }

    /// Starts the repair keeper, if it has the tables of spliced sessions. Without it, this process keeps the
    /// capability for that.
    pub fn start_repair_keeper(&mut self) -> Option<RepairKeeper> {
        if !self.is_on || !self.job.splices || !SPLICE_NET.is_in(held(), kernel()) {
            return None;
        }
        let user = self.user;
        match RepairKeeper::start(|| confine_repair_keeper(user)) {
            Ok((keeper, missing)) => {
                let missing = missing.into_iter().map(|missing| format!("the repair keeper: {missing}"));
                self.confined.missing.extend(missing);
                self.job.has_repair_keeper = true;
                keeper.repair();
                Some(keeper)
            }
            Err(error) => {
                self.confined.missing.push(format!("a process of its own for --splice: {error:#}"));
                None
            }
        }
    }

    /// Starts the process that removes what is pinned in the directory `pins`, if this one has tables of
    /// sessions or flows. `has_tcx`: it attaches programs to devices, and detaches them, without a
    /// capability. `follow` attaches them to devices that come, until its line is readable, and may use the
    /// descriptors `kept`; `remove` removes all.
    ///
    /// `None`: this process removes it, as far as it can by then.
    pub fn start_pins_keeper(
        &mut self,
        pins: &Path,
        has_tcx: bool,
        kept: &[RawFd],
        follow: impl FnOnce(BorrowedFd<'_>),
        remove: impl FnOnce(),
    ) -> Option<PinsKeeper> {
        if !(self.job.splices || self.job.offloads) {
            return None;
        }
        let is_on = self.is_on;
        let confine = || if is_on { confine_pins_keeper(pins, has_tcx) } else { Ok(Vec::new()) };
        match PinsKeeper::start(kept, confine, follow, remove) {
            Ok((keeper, missing)) => {
                let missing = missing.into_iter().map(|missing| format!("the pins keeper: {missing}"));
                self.confined.missing.extend(missing);
                Some(keeper)
            }
            Err(error) => {
                let missing = format!("a process of its own for pins: {error:#}");
                self.confined.missing.extend(is_on.then_some(missing));
                None
            }
        }
    }

    /// Gives it up. What is not possible here is left out, and [`Confined::announce`] names it.
    pub fn enter(self) -> anyhow::Result<Confined> {
        let Self { files, job, user, is_on, mut confined, .. } = self;
        let unusable = || {
            let dir = job.state.as_deref().unwrap_or(Path::new("")).display();
            format!(
                "--acme: can't keep certificates in {dir}; expected truepeer's own directory: --acme-state DIR"
            )
        };
        if let (Some(dir), Some(user)) = (&job.state, user) {
            state::prepare(dir, user).with_context(unusable)?;
        }
        let before = held();
        let outcome = is_on.then(|| privileges::reduce(&job, user, files).context("can't drop privileges"));
        let outcome = outcome.transpose()?;
        if let Some(dir) = &job.state {
            state::keep(dir).with_context(unusable)?;
        }
        confined.state.clone_from(&job.state);
        let Some(outcome) = outcome else { return Ok(confined) };
        confined.done.extend(user.map(|user| format!("user {user}")));
        confined.done.push(format!("capabilities {}", Capability::names_in(outcome.kept)));
        confined.missing.extend(outcome.missing);
        confined.reduced = Some((before, outcome.kept));
        if let Err(error) = rustix::thread::set_no_new_privs(true) {
            confined.missing.push(format!("no_new_privs, and with it seccomp and Landlock: {error}"));
            return Ok(confined);
        }
        match files::restrict(&job, files, outcome.reads_everything) {
            Ok(how) => {
                confined.done.push(how);
                confined.limits_files = true;
            }
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
        match calls::restrict(&job) {
            Ok(count) => confined.done.push(format!("{count} system calls")),
            Err(error) => confined.missing.push(format!("seccomp: {error:#}")),
        }
        confined.done.extend(
            confined
                .has_keeper
                .then(|| "rules, routes, buffers and listening sockets by a keeper".to_owned()),
        );
        confined
            .done
            .extend(confined.has_attach_keeper.then(|| "attachments by the attach keeper".to_owned()));
        confined.done.extend(job.has_repair_keeper.then(|| "TCP_REPAIR by the repair keeper".to_owned()));
        Ok(confined)
    }
}

/// Makes a keeper give up all but its own job. Returns what was not possible.
fn confine_keeper(user: Option<Found>) -> anyhow::Result<Vec<String>> {
    let mut missing = privileges::reduce_to(job::of_keeper(held()), user)?;
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        missing.push(format!("no_new_privs, and with it seccomp and Landlock: {error}"));
        return Ok(missing);
    }
    missing.extend(files::restrict_keeper().err());
    missing.extend(calls::restrict_keeper().err().map(|error| format!("seccomp: {error:#}")));
    Ok(missing)
}

/// The same for the repair keeper.
fn confine_repair_keeper(user: Option<Found>) -> anyhow::Result<Vec<String>> {
    let mut missing = privileges::reduce_to(job::of_repair_keeper(held()), user)?;
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        missing.push(format!("no_new_privs, and with it seccomp and Landlock: {error}"));
        return Ok(missing);
    }
    missing.extend(files::restrict_to_none().err());
    missing.extend(calls::restrict_repair_keeper().err().map(|error| format!("seccomp: {error:#}")));
    Ok(missing)
}

/// The same for the pins keeper, which keeps its user.
fn confine_pins_keeper(pins: &Path, has_tcx: bool) -> anyhow::Result<Vec<String>> {
    let mut missing = privileges::reduce_to(job::of_pins_keeper(held(), has_tcx), None)?;
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        missing.push(format!("no_new_privs, and with it seccomp and Landlock: {error}"));
        return Ok(missing);
    }
    missing.extend(files::restrict_pins_keeper(pins).err());
    missing.extend(calls::restrict_pins_keeper().err().map(|error| format!("seccomp: {error:#}")));
    Ok(missing)
}

/// Why this process can't be confined at all.
fn obstacle() -> Option<String> {
    // Another thread, such as one of a preloaded library, would keep every privilege.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    (threads != 1).then(|| format!("{threads} threads run already"))
}

/// The user to become, if any.
fn find_user(config: &ConfineConfig, confined: &mut Confined) -> anyhow::Result<Option<Found>> {
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
        Ok(found) => Ok(Some(found)),
        Err(missing) => {
            confined.missing.push(format!("a user of its own: {missing}"));
            Ok(None)
        }
    }
}

impl Confined {
    /// Logs what was done in one line, and what is missing in another.
    pub fn announce(&self) {
        if !self.done.is_empty() {
            tracing::info!("confined: {}", self.done.join(", "));
        }
        if !self.missing.is_empty() {
            tracing::warn!("not confined by {} (--confine off accepts that)", self.missing.join("; "));
        }
    }

    /// # Errors
    /// The new configuration needs a capability that this process has given up.
    pub fn permits(&self, process: &ProcessConfig) -> anyhow::Result<()> {
        if !process.acme_names().is_empty() && self.state.as_ref() != Some(&process.acme.state) {
            bail!(
                "acme: this process may not write to {}, where certificates would be kept: restart it",
                process.acme.state.display()
            );
        }
        let Some((before, after)) = self.reduced else { return Ok(()) };
        let mut job = Job::of(process, &[], false);
        job.has_keeper = self.has_keeper;
        if job.attaches && !self.has_attach_keeper {
            bail!(
                "[[attach]] needs privileges that truepeer gave up after its start, because the file had no [[attach]] then: restart truepeer"
            );
        }
        match job.lost(before, after) {
            Some(need) => bail!(
                "{} now needs {}, which this process gave up after its start: restart it",
                need.of.replace('`', ""),
                need.capabilities()
            ),
            None => Ok(()),
        }
    }

    /// Adds the likely cause to a refusal.
    pub fn explain(&self, problem: anyhow::Error) -> anyhow::Error {
        let text = format!("{problem:#}");
        if self.limits_files && text.contains("Permission denied") {
            return anyhow!(
                "{text}; after its start this process reads only the directories of the files that it has read: \
                 restart it to read others"
            );
        }
        problem
    }
}
