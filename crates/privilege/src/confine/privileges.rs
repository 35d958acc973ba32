//! Gives up the user and the capabilities. For a process with one thread.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Context as _;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::capability::Capability;
use super::job::Job;
use super::needs::READ_AGAIN;
use super::user::Found;

/// What is left.
pub(super) struct Reduced {
    pub(super) kept: CapabilitySet,
    /// A capability to read every file is among it: some file that a reload reads is readable in no other
    /// way.
    pub(super) reads_everything: bool,
    pub(super) missing: Vec<String>,
}

/// Becomes `user`, and keeps the capabilities that `job` needs after the start.
pub(super) fn reduce(job: &Job, user: Option<Found>, files: &[PathBuf]) -> anyhow::Result<Reduced> {
    let held = capabilities(None).context("capget")?.permitted;
    let mut missing = Vec::new();
    let keeps = job.keeps(held);
    let reader =
        READ_AGAIN.enough_on(super::needs::kernel()).find(|one| one.is_in(held)).map(Capability::set);
    become_user(user)?;
    let all = keeps | reader.unwrap_or(CapabilitySet::empty());
    let bounding = held & CapabilitySet::SETPCAP;
    if let Err(error) = set(keeps, all | bounding) {
        // The other user's effective set is empty: it could not serve.
        anyhow::ensure!(user.is_none(), error);
        missing.push(format!(
            "capabilities ({} instead of {}): {error}",
            Capability::names_in(held),
            Capability::names_in(keeps)
        ));
        return Ok(Reduced { kept: held, reads_everything: false, missing });
    }
    let unreadable = files.iter().any(is_refused);
    let kept = if unreadable { all } else { keeps };
    set(kept | bounding, kept | bounding)?;
    missing.extend(bound(kept).err());
    set(kept, kept)?;
    if unreadable && reader.is_none() {
        missing.push(format!(
            "the next reload: this user can't read all files, and has no {}",
            READ_AGAIN.first()
        ));
    }
    Ok(Reduced { kept, reads_everything: unreadable && reader.is_some(), missing })
}

/// Becomes `user`, and keeps `keeps` alone. Returns what is missing.
pub(super) fn reduce_to(keeps: CapabilitySet, user: Option<Found>) -> anyhow::Result<Vec<String>> {
    let bounding = capabilities(None).context("capget")?.permitted & CapabilitySet::SETPCAP;
    become_user(user)?;
    set(keeps | bounding, keeps | bounding)?;
    let missing = bound(keeps).err();
    set(keeps, keeps)?;
    Ok(missing.into_iter().collect())
}

fn become_user(user: Option<Found>) -> anyhow::Result<()> {
    if let Some(user) = user {
        set_keep_capabilities(true).context("prctl(PR_SET_KEEPCAPS)")?;
        set_thread_groups(&[]).context("setgroups")?;
        set_thread_res_gid(user.gid(), user.gid(), user.gid()).context("setresgid")?;
        set_thread_res_uid(user.uid(), user.uid(), user.uid()).context("setresuid")?;
    }
    // Fails only before Linux 4.3, which has no ambient capabilities.
    let _ = clear_ambient_capability_set();
    Ok(())
}

/// Gives up the capability to read every file, too.
pub(super) fn stop_reading(job: &Job) -> anyhow::Result<()> {
    let held = capabilities(None).context("capget")?.permitted;
    let keeps = job.keeps(held);
    set(keeps, keeps)
}

fn is_refused(file: &PathBuf) -> bool {
    File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

fn set(effective: CapabilitySet, permitted: CapabilitySet) -> anyhow::Result<()> {
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("capset")
}

/// Limits what a program could regain by execve(2), which seccomp refuses anyway.
fn bound(keeps: CapabilitySet) -> Result<(), String> {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if !held.contains(CapabilitySet::SETPCAP) {
        // no_new_privs, which follows, has the same effect: execve(2) adds no capability.
        return Ok(());
    }
    for one in CapabilitySet::all().iter().filter(|one| !keeps.contains(*one)) {
        match remove_capability_from_bounding_set(one) {
            // INVAL: the kernel does not know it.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(format!("the bounding set: {error}")),
        }
    }
    Ok(())
}
