//! The CPU time of a contestant: all processes of its process group. Kernel work on its behalf in other
//! processes' time (a loopback packet is received in the sender's time) counts for those processes, as in
//! every such measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's unit of time for user space (USER_HZ): 100 on every architecture that Rust supports.
const TICKS_PER_SECOND: u64 = 100;

/// The processes of a group.
pub(crate) fn members(group: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|&process| field(process, GROUP) == u64::try_from(group).ok()).collect()
}

/// Whether a process executes this file.
pub(crate) fn runs(process: i32, program: &Path) -> bool {
    let same = |executed: PathBuf| program.canonicalize().is_ok_and(|program| program == executed);
    fs::read_link(format!("/proc/{process}/exe")).is_ok_and(same)
}

/// The CPU time of a process so far, over all threads, user and kernel.
pub(crate) fn time_of(process: i32) -> Duration {
    if let Some(precise) = precise_time_of(process) {
        return precise;
    }
    let ticks = field(process, USER).unwrap_or(0) + field(process, SYSTEM).unwrap_or(0);
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// The scheduler's own accounting, in nanoseconds. It covers only living threads; these live long.
fn precise_time_of(process: i32) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut total = 0u64;
    for task in tasks.flatten() {
        let account = fs::read_to_string(task.path().join("schedstat")).ok()?;
        total += account.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(total))
}

/// Fields of `/proc/PID/stat`, numbered as in proc_pid_stat(5).
const GROUP: usize = 5;
const USER: usize = 14;
const SYSTEM: usize = 15;

fn field(process: i32, number: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Field 2 is the program's name in parentheses. It may contain blanks and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_time_is_counted() {
        let own = i32::try_from(std::process::id()).expect("a process number");
        let before = time_of(own);
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(30) {}
        let spent = time_of(own) - before;
        assert!(spent > Duration::ZERO && spent < Duration::from_secs(10), "{spent:?}");
        let group = field(own, GROUP).and_then(|group| i32::try_from(group).ok()).expect("a group");
        assert!(members(group).contains(&own));
        assert!(runs(own, &std::env::current_exe().expect("a program")) && !runs(own, Path::new("/bin/sh")));
    }
}
