//! Passes on what the program tells the service manager (sd_notify(3)).
//!
//! ```text
//! program ──NOTIFY_SOCKET──▶ guard ──▶ service manager
//! ```
//! systemd hears only the main process of a unit (NotifyAccess=main). That is the guard, and the program is
//! its grandchild. The guard stays the main process: after a MAINPID= of the program systemd would ignore the
//! guard, and stop the program without it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, process};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use truepeer_sys::datagram::{ProcessMessage, receive_from_process, send_with_descriptors};

use super::journal::SupervisorLog;
use crate::library::in_own_directory;
use truepeer_sys::tell;

/// Names the service manager's socket.
pub(super) const VARIABLE: &str = "NOTIFY_SOCKET";
/// The most that systemd accepts (NOTIFY_BUFFER_MAX).
const MOST_BYTES: usize = 4096;
/// How long the service manager may leave its socket full.
const PATIENCE: Duration = Duration::from_secs(5);
/// Processes between the guard and a sender.
const MOST_ANCESTORS: usize = 1024;
const PREFIX: &str = "notify-";

/// The guard's socket for the program's messages.
#[derive(Debug)]
pub(super) struct NotifyRelay {
    socket: UnixDatagram,
    path: PathBuf,
    manager: SocketAddr,
    journal: SupervisorLog,
}

impl AsFd for NotifyRelay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl NotifyRelay {
    /// Opens it if a service manager listens. Call it in the process that becomes the guard.
    pub(super) fn open() -> Option<Self> {
        let manager = address(&env::var_os(VARIABLE)?)?;
        match in_own_directory(bind_in) {
            Ok((socket, path)) => Some(Self { socket, path, manager, journal: SupervisorLog::new(None) }),
            Err(tried) => {
                tell!(
                    "truepeer: warning: the program can't tell the service manager that it is ready: {tried}"
                );
                None
            }
        }
    }

    /// The program's value of [`VARIABLE`].
    pub(super) fn variable(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    /// Passes one message on, if there is one.
    pub(super) fn pass_on(&mut self) {
        match receive_from_process(self.as_fd(), MOST_BYTES) {
            Ok(message) if !message.sender.is_some_and(is_of_the_family) => {
                let sender = message.sender.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
                let why = format!("process {sender} has ended or is not the program's");
                self.journal.on_trouble("a message to the service manager is not passed on", &why);
            }
            Ok(message) => {
                if let Err(error) = self.send(&message) {
                    self.journal.on_trouble("a message to the service manager is lost", &error);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => self.journal.on_trouble("a message to the service manager is lost", &errno),
        }
    }

    fn send(&self, message: &ProcessMessage) -> io::Result<()> {
        let bytes = without_main_process(&message.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&self.manager)?;
        loop {
            match send_with_descriptors(socket.as_fd(), &bytes, &message.descriptors) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for_room(&socket)?,
                sent => return Ok(sent?),
            }
        }
    }

    /// Only the guard does it, because the path is in use until it ends.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn wait_for_room(socket: &UnixDatagram) -> io::Result<()> {
    let limit = Timespec::try_from(PATIENCE).ok();
    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], limit.as_ref()) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// `/run/systemd/notify`, or an abstract name as `@name`. Other kinds (vsock) are for virtual machines.
fn address(variable: &OsString) -> Option<SocketAddr> {
    match variable.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(variable).ok(),
        _ => None,
    }
}

/// A path, because some programs don't know abstract names.
fn bind_in(dir: &Path) -> io::Result<(UnixDatagram, PathBuf)> {
    remove_unused(dir);
    let path = dir.join(format!("{PREFIX}{}", process::id()));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    set_socket_passcred(&socket, true)?;
    bind(&socket, &SocketAddrUnix::new(path.as_path())?)?;
    // The program may run as another user. Messages of strangers are refused by their sender.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok((socket.into(), path))
}

/// Removes the sockets that killed guards have left.
fn remove_unused(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes())) {
        let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(entry.path()));
        if connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether the process descends from this one.
fn is_of_the_family(mut pid: i32) -> bool {
    let own = process::id().cast_signed();
    for _ in 0..MOST_ANCESTORS {
        match parent_of(pid) {
            Some(parent) if parent == own => return true,
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// From `/proc/PID/stat`: `PID (NAME) STATE PARENT …`, where the name may contain anything.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// The message without the lines that name the main process.
fn without_main_process(message: &[u8]) -> Vec<u8> {
    let names_it: [&[u8]; 3] = [b"MAINPID=", b"MAINPIDFD=", b"MAINPIDFDID="];
    let is_kept = |line: &&[u8]| !names_it.iter().any(|name| line.starts_with(name));
    let kept: Vec<&[u8]> = message.split(|byte| *byte == b'\n').filter(is_kept).collect();
    kept.join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_process_is_not_changed() {
        let passed = |message: &str| String::from_utf8(without_main_process(message.as_bytes())).unwrap();
        assert_eq!(passed("READY=1\nMAINPID=7\nSTATUS=MAINPID=8"), "READY=1\nSTATUS=MAINPID=8");
        assert_eq!(passed("MAINPID=7\nMAINPIDFDID=8"), "");
        assert_eq!(passed("MAINPIDFD=1\nREADY=1"), "READY=1");
        assert_eq!(passed("WATCHDOG=1\n"), "WATCHDOG=1\n");
    }
}
