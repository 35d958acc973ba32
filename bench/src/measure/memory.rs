//! Memory and descriptors.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::cpu::members;

/// The memory and descriptors of a contestant's processes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    /// Resident memory; shared pages are counted once (Pss).
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: u64,
}

impl Footprint {
    /// Sums over the processes of these groups.
    pub(crate) fn of(groups: Vec<i32>) -> Self {
        let processes = groups.into_iter().flat_map(members);
        processes.fold(Self::default(), |sum, process| Self {
            resident_bytes: sum.resident_bytes + proportional_bytes(process).unwrap_or(0),
            descriptors: sum.descriptors + descriptors(process),
        })
    }
}

fn proportional_bytes(process: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    kib(&rollup, "Pss:").map(|kib| kib * 1024)
}

fn descriptors(process: i32) -> u64 {
    fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64)
}

/// The kernel's memory for sockets, descriptors, pipes, threads and page tables of the whole machine: use it
/// only as a difference. It excludes bytes waiting in sockets; idle sessions have none.
pub(crate) fn kernel_bytes() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let sum = |kinds: &[&str]| kinds.iter().filter_map(|kind| kib(&text, kind)).sum::<u64>() * 1024;
    let rest = sum(&["KernelStack:", "PageTables:"]);
    // Only root can read it. Slab includes cached objects, and the files of all processes.
    Ok(rest + fs::read_to_string("/proc/slabinfo").map_or_else(|_| sum(&["Slab:"]), |slabs| objects(&slabs)))
}

/// Waits (for a moment at most) until the remains of earlier measurements are gone: the kernel removes
/// namespaces asynchronously.
pub(crate) fn settle() -> anyhow::Result<()> {
    let mut before = kernel_bytes()?;
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(100));
        let now = kernel_bytes()?;
        if now.abs_diff(before) < now / 500 {
            break;
        }
        before = now;
    }
    Ok(())
}

/// The caches of a session's objects. Not the dentries (192 bytes for each descriptor), of which other
/// processes have many more.
/// have many more.
const CACHES: [&str; 9] = [
    "TCP",
    "TCPv6",
    "sock_inode_cache",
    "filp",
    "eventpoll_epi",
    "eventpoll_pwq",
    "ep_head",
    "tcp_bind_bucket",
    "tcp_bind2_bucket",
];

/// The size of living objects in [`CACHES`] and in the general caches (pipes are there), from
/// `/proc/slabinfo`.
fn objects(slabinfo: &str) -> u64 {
    let bytes = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let (living, _all, size) = (words.next()?, words.next()?, words.next()?);
        let ours = CACHES.contains(&name) || name.starts_with("kmalloc-cg-");
        ours.then(|| Some(living.parse::<u64>().ok()? * size.parse::<u64>().ok()?))?
    };
    slabinfo.lines().filter_map(bytes).sum()
}

/// The value of a line such as `Slab:   123 kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_is_read() {
        assert_eq!(kib("Rss: 9 kB\nPss:   12 kB\nPss_Dirty: 3 kB\n", "Pss:"), Some(12));
        assert_eq!(kib("Rss: 9 kB\n", "Pss:"), None);
    }

    #[test]
    fn only_the_caches_of_sessions_count() {
        let slabinfo = "slabinfo - version: 2.1\n# name <active_objs>\n\
                        TCP 3 13884 2000 13 8 : tunables\ndentry 9 9 192 21 1\nkmalloc-cg-64 10 20 64 64 1\n";
        assert_eq!(objects(slabinfo), 6640);
    }
}
