//! Ends the open connections of banned clients, in all programs that `truepeer run` has started in this
//! network namespace. `truepeer ban` does that, as root: the programs may not end connections themselves.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::thread;

use truepeer_handover::{BANS_PERIOD, Name, Names};
use truepeer_policy::{Bans, ClientAddr};
use truepeer_sys::CallError;
use truepeer_sys::sock_diag::{SockDiag, SocketId};

use crate::NAMES;

/// Ends the connections of clients that headers named. Returns how many there were. Programs that can't be
/// looked into are passed over: other than root's, they need CAP_SYS_ADMIN and CAP_NET_ADMIN.
///
/// If there are programs, it first waits until all have read the new list. Until then they accept the banned
/// clients' connections, which would stay open.
pub fn end_open(bans: &Bans) -> usize {
    let (Ok(all), Some(device)) = (fs::read_dir("/proc"), device_of_memory()) else { return 0 };
    let Some(here) = network_of("self") else { return 0 };
    let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let processes = names.filter(|name| name.parse::<u32>().is_ok() && network_of(name) == Some(here));
    let mut tables = BTreeMap::new();
    for process in processes {
        let Some(memory) = table_of(&process, &device) else { continue };
        let Ok(inode) = memory.metadata().map(|found| found.ino()) else { continue };
        // The table's first process has its user; others may have changed theirs.
        tables.entry(inode).or_insert((process, memory));
    }
    if !tables.is_empty() {
        thread::sleep(2 * BANS_PERIOD);
    }
    tables.values().map(|(process, memory)| end_those_of(process, memory, bans).unwrap_or_default()).sum()
}

/// The connections in the table of a process.
fn end_those_of(process: &str, memory: &File, bans: &Bans) -> Option<usize> {
    let is_banned = |name: &Name| {
        let (client, ends) = (name.client.ip().to_canonical(), name.tuple);
        client != ends.sender.ip() && bans.has(ClientAddr::new(name.client), ends.local.port())
    };
    let banned: Vec<_> =
        Names::open(memory.as_fd()).ok()?.all().filter(|(_, name)| is_banned(name)).collect();
    if banned.is_empty() {
        return None;
    }
    end(&banned, user_of(process)?).ok()
}

/// The program may write anything into its table, so only connections of its own user end; root's program may
/// end any. One that can't be ended keeps none of the others open.
fn end(banned: &[(u64, Name)], user: u32) -> Result<usize, CallError> {
    let mut kernel = SockDiag::open()?;
    let mut ended = 0;
    for (cookie, Name { tuple, .. }) in banned {
        let socket = SocketId::new(tuple.local, tuple.sender, tuple.device, *cookie);
        let its = kernel.user_of(&socket).ok().flatten();
        let is_its_own = its.is_some_and(|its| user == 0 || its == user);
        ended += usize::from(is_its_own && kernel.destroy(&socket).is_ok());
    }
    Ok(ended)
}

/// The memory of the names, which the program or its supervisor has mapped. `device`: of all such memory. A
/// user may give a file the same name, on a file system of his own (FUSE) that never lets an open end.
fn table_of(process: &str, device: &str) -> Option<File> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    // proc_pid_maps(5): range, permissions, offset, device, inode, name.
    let is_table = |line: &&str| line.ends_with(NAMES) && line.split(' ').nth(3) == Some(device);
    let range = maps.lines().find(is_table)?.split(' ').next()?;
    OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/map_files/{range}")).ok()
}

/// The device of memfd_create(2), as in `/proc/PID/maps`.
fn device_of_memory() -> Option<String> {
    let memory = rustix::fs::memfd_create(c"truepeer-device", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    let device = File::from(memory).metadata().ok()?.dev();
    Some(format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// The network namespace's inode.
fn network_of(process: &str) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{process}/ns/net")).ok()?.ino())
}

/// The effective user.
fn user_of(process: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}
