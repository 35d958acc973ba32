//! The admin's listening sockets.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use socket2::SockRef;
use tracing::{info, warn};
use truepeer_session::listening::{ListenOptions, listen, listen_locally};

use super::stream::Stream;
use truepeer_config::spec::AdminAddr;

/// Owner and group may connect to the unix socket: connecting takes the permission to write.
const MODE: u32 = 0o660;
/// Everybody may ask who one peer is.
const MODE_OF_WHOIS: u32 = 0o666;

/// Connections are accepted at once, so this many wait only while a response is made.
const BACKLOG: i32 = 128;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Entrance {
    socket: Socket,
    /// The path that this process has bound, and the file's device and inode.
    bound: Option<(PathBuf, (u64, u64))>,
    is_whois: bool,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Entrance {
    /// Takes the socket of `address` from `inherited`, or opens it.
    pub(super) fn open(address: &AdminAddr, inherited: &mut Vec<OwnedFd>) -> anyhow::Result<Self> {
        let entrance = Self::open_quietly(address, inherited)?;
        info!("admin: listening on {address}");
        Ok(entrance)
    }

    /// The same, without a line in the log.
    pub(super) fn open_quietly(address: &AdminAddr, inherited: &mut Vec<OwnedFd>) -> anyhow::Result<Self> {
        let entrance = match address {
            AdminAddr::Tcp(address) => Self::tcp(*address, inherited),
            AdminAddr::Unix(path) => Self::unix(path, MODE, inherited),
            AdminAddr::Whois(path) => Self::unix(path, MODE_OF_WHOIS, inherited),
        };
        entrance.with_context(|| format!("can't listen on --admin {address}"))
    }

    fn tcp(address: SocketAddr, inherited: &mut Vec<OwnedFd>) -> anyhow::Result<Self> {
        let is_it = |socket: &OwnedFd| {
            let bound = SockRef::from(socket).local_addr().ok();
            bound.and_then(|bound| bound.as_socket()) == Some(address) && is_listening(socket)
        };
        let listener = match take(inherited, is_it) {
            Some(socket) => TcpListener::from(socket),
            None => listen(address, ListenOptions::default()).map_err(|failed| failed.error)?.into(),
        };
        listener.set_nonblocking(true)?;
        Ok(Self { socket: Socket::Tcp(listener), bound: None, is_whois: false })
    }

    fn unix(path: &Path, mode: u32, inherited: &mut Vec<OwnedFd>) -> anyhow::Result<Self> {
        let is_whois = mode == MODE_OF_WHOIS;
        let is_it = |socket: &OwnedFd| {
            let bound = SockRef::from(socket).local_addr().ok();
            bound.and_then(|bound| Some(bound.as_pathname()? == path)).unwrap_or(false)
                && is_listening(socket)
        };
        if let Some(socket) = take(inherited, is_it) {
            let listener = UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            return Ok(Self {
                socket: Socket::Unix(listener),
                bound: identity(path).map(|file| (path.into(), file)),
                is_whois,
            });
        }
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.exists()) {
            bail!("its directory does not exist; type: mkdir -p {}", directory.display());
        }
        remove_stale(path)?;
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.bind(&socket2::SockAddr::unix(path)?)?;
        // Before listen(): until then nobody can connect, whatever the umask permits.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        listen_locally(socket.as_fd(), BACKLOG)?;
        let listener = UnixListener::from(OwnedFd::from(socket));
        listener.set_nonblocking(true)?;
        let bound = identity(path).map(|file| (path.into(), file));
        Ok(Self { socket: Socket::Unix(listener), bound, is_whois })
    }

    /// Another handle of the socket, for a process that takes over.
    pub(super) fn duplicate(&self) -> anyhow::Result<OwnedFd> {
        Ok(self.as_fd().try_clone_to_owned()?)
    }

    /// Whether its connections may only ask who one peer is.
    pub(super) fn is_whois(&self) -> bool {
        self.is_whois
    }

    /// Accepts one connection. `None`: nobody is waiting.
    ///
    /// # Errors
    /// The system has no descriptor or memory left, or this connection was lost.
    pub(super) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match &self.socket {
            Socket::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Socket::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        };
        match accepted {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            accepted => accepted.map(Some),
        }
    }

    /// Removes the path if it is still the one that this process has bound.
    pub(super) fn unlink(&self) {
        if let Some((path, file)) = &self.bound
            && identity(path) == Some(*file)
            && let Err(error) = fs::remove_file(path)
        {
            // The directory is another user's: the next start removes it.
            if error.kind() == ErrorKind::PermissionDenied {
                info!("admin: {} stays, because this user can't remove it", path.display());
                return;
            }
            warn!("can't remove {}: {error}", path.display());
        }
    }
}

impl AsFd for Entrance {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener) => listener.as_fd(),
        }
    }
}

fn take(inherited: &mut Vec<OwnedFd>, is_it: impl Fn(&OwnedFd) -> bool) -> Option<OwnedFd> {
    let place = inherited.iter().position(is_it)?;
    Some(inherited.remove(place))
}

fn is_listening(socket: &OwnedFd) -> bool {
    SockRef::from(socket).is_listener().unwrap_or(false)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Removes a socket that a process has left behind: one that nobody listens on.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !file.file_type().is_socket() {
        bail!("a file is there that is no socket; choose another path, or remove it");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(error) => Err(error).context("another program's socket is there"),
        Ok(_) => bail!("another program listens there; is truepeer running already?"),
    }
}
