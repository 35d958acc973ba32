//! A running program: its output, its listeners, and its end.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::bed::Bed;
use crate::sockets;
use crate::wait::{WAIT_LIMIT, wait_until};

/// How long a program may take to end in an orderly way before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long a program may take to end after one signal, before it gets a second.
const SOON: Duration = Duration::from_millis(200);
/// The kernel's number of the LISTEN state in /proc/net/tcp.
const LISTEN: &str = "0A";

/// A started program. Dropping it ends it and its children.
pub struct Running {
    name: String,
    pid: Pid,
    child: Mutex<Child>,
    stop_by: Signal,
    out: PathBuf,
    err: PathBuf,
    forget: Box<dyn Fn() + Send + Sync>,
}

impl Running {
    pub(crate) fn adopt(
        name: String,
        child: Child,
        stop_by: Signal,
        logs: [PathBuf; 2],
        bed: &Bed,
    ) -> Running {
        let pid = Pid::from_child(&child);
        bed.remember(pid);
        let groups = bed.groups();
        let forget = Box::new(move || {
            groups.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != pid);
        });
        let [out, err] = logs;
        Running { name, pid, child: Mutex::new(child), stop_by, out, err, forget }
    }

    /// Its process id, which is also the id of its process group.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The size of its resident memory in bytes.
    pub fn resident_bytes(&self) -> anyhow::Result<usize> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let line = rollup.lines().find(|line| line.starts_with("Rss:")).context("Rss: in smaps_rollup")?;
        let kilobytes: usize = line.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(kilobytes * 1024)
    }

    /// The number of its open descriptors.
    pub fn descriptors(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// The processes that it has started, as far as they still run or nobody has waited for their end.
    pub fn children(&self) -> anyhow::Result<Vec<i32>> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid()))?;
        children.split_whitespace().map(|child| child.parse().context("a process id")).collect()
    }

    /// Its child that `ps` shows by this name.
    pub fn helper(&self, name: &str) -> anyhow::Result<i32> {
        let is_it = |child: &i32| {
            fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|found| found.trim() == name)
        };
        let found = self.children()?.into_iter().find(is_it);
        found.with_context(|| format!("no {name}: {}", self.log()))
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.out)
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.err)
    }

    /// Both, standard output first.
    pub fn log(&self) -> String {
        self.stdout() + &self.stderr()
    }

    /// Whether it is still running.
    pub fn is_alive(&self) -> bool {
        matches!(self.lock().try_wait(), Ok(None))
    }

    /// Waits until something in its network namespace listens (TCP) on `address`, or on its port on a
    /// wildcard address. It asks the kernel and makes no connection. Fails at once if the program ends.
    pub fn wait_listening(&self, address: impl Display) -> anyhow::Result<()> {
        let address: SocketAddr = address.to_string().parse().with_context(|| address.to_string())?;
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        self.wait_state(&format!("a listener on {address}"), || {
            self.has_socket(&address, ["tcp", "tcp6"], LISTEN)
        })
    }

    /// Waits until something in its network namespace has a UDP socket bound to `address`, or to its port on
    /// a wildcard address.
    pub fn wait_bound_udp(&self, address: impl Display) -> anyhow::Result<()> {
        let address = address.to_string().parse().with_context(|| address.to_string())?;
        // "07" is what the kernel shows for an unconnected UDP socket.
        self.wait_state(&format!("a UDP socket on {address}"), || {
            self.has_socket(&address, ["udp", "udp6"], "07")
        })
    }

    /// Waits until a whole line of its output contains `text`: what a caller then reads is not cut.
    pub fn wait_for_log(&self, text: &str) -> anyhow::Result<()> {
        let has = |output: String| output.rfind('\n').is_some_and(|end| output[..=end].contains(text));
        self.wait_state(&format!("{text:?} in its output"), || has(self.stdout()) || has(self.stderr()))
    }

    /// Waits for a state that this program causes. Fails at once, with its output, if it ends.
    pub fn wait_state(&self, what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
        let outcome = wait_until(WAIT_LIMIT, || {
            let alive = self.is_alive(); // asked before the state: its last output counts
            if holds() {
                return Ok(true);
            }
            anyhow::ensure!(alive, "it has ended");
            Ok(false)
        });
        outcome
            .with_context(|| format!("waited for {what} of {}, whose output was:\n{}", self.name, self.log()))
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("kill {}", self.name))
    }

    /// Waits for its end.
    pub fn wait_end(&self) -> anyhow::Result<ExitStatus> {
        self.wait_end_within(WAIT_LIMIT * 2)
    }

    /// The same for a program that may take as long as `limit`.
    pub fn wait_end_within(&self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let mut status = None;
        wait_until(limit, || {
            status = self.lock().try_wait()?;
            Ok(status.is_some())
        })
        .with_context(|| format!("{} had to end; its output was:\n{}", self.name, self.log()))?;
        status.context("ended without a status")
    }

    /// Asks it to end, and waits for that.
    pub fn stop(&self) -> anyhow::Result<ExitStatus> {
        self.ask_to_end()?;
        self.wait_end()
    }

    /// Signals twice what does not end soon: truepeer lets open sessions go on after the first SIGTERM, and
    /// ends at once after the second.
    fn ask_to_end(&self) -> anyhow::Result<()> {
        self.signal(self.stop_by)?;
        if wait_until(SOON, || Ok(!self.is_alive())).is_err() {
            // It may have ended just now.
            let _ = self.signal(self.stop_by);
        }
        Ok(())
    }

    /// Reads only as far as the sockets with this state go. The kernel lists listeners before connections, of
    /// which there may be so many in TIME_WAIT that a whole table takes it half a minute.
    fn has_socket(&self, address: &SocketAddr, tables: [&str; 2], state: &str) -> bool {
        tables.iter().any(|table| {
            let Ok(table) = File::open(format!("/proc/{}/net/{table}", self.pid())) else { return false };
            let lines = BufReader::new(table).lines().skip(1).map_while(Result::ok);
            let sockets = lines.map(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().and_then(sockets::parse_address);
                (local, fields.nth(1) == Some(state))
            });
            let mut sought = sockets.take_while(|(_, has_state)| *has_state || state != LISTEN);
            sought.any(|(local, has_state)| has_state && local.is_some_and(|local| serves(&local, address)))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_alive() && self.ask_to_end().is_ok() {
            // It is killed below, whether it has ended or not.
            let _ = wait_until(GRACE, || Ok(!self.is_alive()));
        }
        // A process group exists as long as any member does, and its id is not reused before.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = self.lock().wait();
        (self.forget)();
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (process {})", self.name, self.pid())
    }
}

fn read(file: &PathBuf) -> String {
    fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a socket bound to `local` receives what is sent to `address`.
fn serves(local: &SocketAddr, address: &SocketAddr) -> bool {
    let any_family = local.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let same_family = local.is_ipv4() == address.is_ipv4();
    local.port() == address.port()
        && (any_family || local.ip() == address.ip() || (same_family && local.ip().is_unspecified()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_serves_its_family() {
        let gets = |local: &str, address: &str| {
            serves(&local.parse().expect("local"), &address.parse().expect("address"))
        };
        assert!(gets("0.0.0.0:80", "127.0.0.1:80"));
        assert!(gets("[::]:80", "127.0.0.1:80"));
        assert!(!gets("0.0.0.0:80", "[::1]:80"));
        assert!(!gets("127.0.0.2:80", "127.0.0.1:80"));
    }
}
