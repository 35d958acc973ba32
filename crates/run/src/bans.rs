//! Ends the open connections of banned clients, in all programs that `truepeer run` has started on this host.
//! Whoever bans does that: a program may be another user's, who may not end connections.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use truepeer_handover::{Name, Names};
use truepeer_policy::{Bans, ClientAddr};
use truepeer_sys::CallError;
use truepeer_sys::netns::NetNs;
use truepeer_sys::sock_diag::{SockDiag, SocketId};

use crate::NAMES;

/// Ends the connections of clients that headers named. Returns how many there were. Programs that can't be
/// looked into are passed over: other than root's, they need CAP_SYS_ADMIN and CAP_NET_ADMIN.
pub fn end_open(bans: &Bans) -> usize {
    let Ok(all) = fs::read_dir("/proc") else { return 0 };
    let mut seen = BTreeSet::new();
    let processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.map(|process| end_those_of(process, bans, &mut seen).unwrap_or_default()).sum()
}

/// The connections in the table of a process, if that has not been `seen`.
fn end_those_of(process: u32, bans: &Bans, seen: &mut BTreeSet<u64>) -> Option<usize> {
    let memory = table_of(process)?;
    if !seen.insert(memory.metadata().ok()?.ino()) {
        return None;
    }
    let is_banned = |name: &Name| {
        let (client, ends) = (name.client.ip().to_canonical(), name.tuple);
        client != ends.sender.ip() && bans.has(ClientAddr::new(name.client), ends.local.port())
    };
    let banned: Vec<_> =
        Names::open(memory.as_fd()).ok()?.all().filter(|(_, name)| is_banned(name)).collect();
    if banned.is_empty() {
        return None;
    }
    let user = user_of(process)?;
    let namespace = NetNs::open(Path::new(&format!("/proc/{process}/ns/net"))).ok()?;
    namespace.run(|| end(&banned, user)).ok()?.ok()
}

/// In the network namespace of these. The table is the program's own memory, and it may write into it what it
/// likes: only connections of its own user end.
fn end(banned: &[(u64, Name)], user: u32) -> Result<usize, CallError> {
    let mut kernel = SockDiag::open()?;
    let mut ended = 0;
    for (cookie, Name { tuple, .. }) in banned {
        let socket = SocketId::new(tuple.local, tuple.sender, tuple.device, *cookie);
        let its = kernel.user_of(&socket)?;
        if its.is_some_and(|its| user == 0 || its == user) {
            kernel.destroy(&socket)?;
            ended += 1;
        }
    }
    Ok(ended)
}

/// The memory of the names, which the program or its supervisor has mapped.
fn table_of(process: u32) -> Option<File> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    let range = maps.lines().find(|line| line.ends_with(NAMES))?.split(' ').next()?;
    OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/map_files/{range}")).ok()
}

/// The effective user.
fn user_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}
