//! Who uses the rules: counted per network namespace, without a file and without cleaning up after the dead.
//!
//! An abstract unix socket is visible in one network namespace only and vanishes with its process, SIGKILL
//! included. Every owner binds one named `truepeer/routes/owner/PID/N`; whoever changes rules holds
//! `truepeer/routes/lock` meanwhile. Any local user can bind such names, so a squatter can make us wait
//! [`LOCK_PATIENCE`] at a start, and can make the last owner leave the rules behind; nothing worse.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::{Duration, Instant};

/// How long a start waits for another's change to end; a change takes milliseconds.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(2);

const LOCK: &str = "truepeer/routes/lock";
const OWNER: &str = "truepeer/routes/owner/";

/// One living use of the rules.
#[derive(Debug)]
pub(crate) struct Owner {
    _name: UnixDatagram,
}

impl Owner {
    /// Becomes an owner until dropped.
    pub(crate) fn register() -> io::Result<Self> {
        // containers that share a network namespace may all be process 1: then the next N is tried
        const TRIES: u32 = 256;
        let free = |n| match bind(&format!("{OWNER}{}/{n}", std::process::id())) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => None,
            result => Some(result),
        };
        let name = (0..TRIES).find_map(free).unwrap_or(Err(io::ErrorKind::AddrInUse.into()))?;
        Ok(Self { _name: name })
    }
}

/// The right to change rules.
#[derive(Debug)]
pub(crate) struct Lock {
    _name: Option<UnixDatagram>,
}

impl Lock {
    /// Waits for it at most [`LOCK_PATIENCE`], then goes on without: every change is idempotent, and an
    /// outage would be worse than two instances that race.
    pub(crate) fn acquire() -> Self {
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match bind(LOCK) {
                Ok(name) => return Self { _name: Some(name) },
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "a local process holds the abstract socket @{LOCK} (ss -xlp shows it); \
                         changing the routes without waiting for it any longer"
                    );
                    return Self { _name: None };
                }
            }
        }
    }
}

fn bind(name: &str) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The process ids of the living owners, ourselves included, as they call themselves (a container's own
/// numbers in a container).
///
/// # Errors
/// Where `/proc` is missing or hidden: the caller must then take it that there are others.
pub(crate) fn living() -> io::Result<Vec<u32>> {
    // not /proc/self: that is the main thread's namespace
    Ok(owners_in(&fs::read_to_string("/proc/thread-self/net/unix")?))
}

fn owners_in(proc_net_unix: &str) -> Vec<u32> {
    let name = |line: &str| line.split_once(&format!(" @{OWNER}"))?.1.split_once('/')?.0.parse().ok();
    proc_net_unix.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_from_the_list_of_unix_sockets() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            000000006d5e1e2c: 00000002 00000000 00000000 0002 01 24680 @truepeer/routes/owner/4711/0\n\
            00000000e1f0a1b2: 00000002 00000000 00000000 0002 01 24681 @truepeer/routes/lock\n\
            00000000e1f0a1b3: 00000002 00000000 00000000 0002 01 24682 @truepeer/routes/owner/12/1\n\
            00000000e1f0a1b4: 00000002 00000000 00000000 0002 01 24683 @truepeer/routes/owner/nonsense\n\
            00000000e1f0a1b5: 00000002 00000000 00010000 0001 01 24684 /run/truepeer/routes/owner/9/1\n";
        assert_eq!(owners_in(list), [4711, 12]);
    }

    #[test]
    fn an_owner_is_counted_while_it_lives() {
        let mine = || living().unwrap().iter().filter(|pid| **pid == std::process::id()).count();
        let before = mine();
        let owner = Owner::register().unwrap();
        assert_eq!(mine(), before + 1);
        drop(owner);
        assert_eq!(mine(), before);
    }
}
