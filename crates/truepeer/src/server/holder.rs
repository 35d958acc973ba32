//! Finds the program that holds an address that can't be bound, if this user may see it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use crate::doctor::listening::{self, Socket};
use crate::plan::{EntryConfig, ProcessConfig};
use crate::routes::item::IpTransport;

/// What [`look_ahead`] has found.
static SEEN: OnceLock<Vec<(SocketAddr, IpTransport, String)>> = OnceLock::new();

/// Looks for programs on the listeners' addresses while this process may still see other users' files.
pub(super) fn look_ahead(process: &ProcessConfig) {
    let listeners =
        process.entries.iter().filter_map(EntryConfig::relay).flat_map(|config| &config.listeners);
    let found = listeners.filter_map(|listener| {
        let transport = listener.protocol.into();
        Some((listener.bind, transport, find(listener.bind, transport)?))
    });
    let _ = SEEN.set(found.collect());
}

/// Returns, for example, `haproxy (process 123)`: the first other process found with a socket on the address.
pub(super) fn of(address: SocketAddr, transport: IpTransport) -> Option<String> {
    let seen = || {
        let mut seen = SEEN.get()?.iter();
        seen.find(|(bind, of, _)| (*bind, *of) == (address, transport)).map(|(_, _, holder)| holder.clone())
    };
    find(address, transport).or_else(seen)
}

/// The socket of this process that is in the way of an address.
pub(super) fn own(address: SocketAddr, transport: IpTransport) -> Option<SocketAddr> {
    let own = open_sockets(Path::new("/proc/self"));
    let mut sockets = listening::sockets_of(transport).into_iter();
    let found = sockets.find(|socket| is_in_the_way(socket, address) && own.contains(&socket.inode));
    found.map(|socket| socket.address)
}

fn find(address: SocketAddr, transport: IpTransport) -> Option<String> {
    let sockets = listening::sockets_of(transport);
    let holders: Vec<u64> =
        sockets.iter().filter(|socket| is_in_the_way(socket, address)).map(|socket| socket.inode).collect();
    // Usually. A walk through all processes would cost much.
    if holders.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let number: u32 = process.file_name().to_str()?.parse().ok()?;
        let path = process.path();
        let is_holder =
            number != std::process::id() && open_sockets(&path).iter().any(|inode| holders.contains(inode));
        let name = fs::read_to_string(path.join("comm")).ok()?;
        is_holder.then(|| format!("{} (process {number})", name.trim_end()))
    })
}

/// The inodes of a process's sockets, as far as this user may see them.
fn open_sockets(process: &Path) -> Vec<u64> {
    let inode = |file: fs::DirEntry| {
        let target = fs::read_link(file.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    let files = fs::read_dir(process.join("fd")).into_iter().flatten();
    files.flatten().filter_map(inode).collect()
}

/// A wildcard address conflicts with every address of its port.
fn is_in_the_way(socket: &Socket, address: SocketAddr) -> bool {
    let (bound, wanted) = (socket.address.ip().to_canonical(), address.ip().to_canonical());
    socket.address.port() == address.port()
        && (bound == wanted || bound.is_unspecified() || wanted.is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn another_program_is_found_as_the_holder_and_this_one_never() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let everywhere = SocketAddr::new("0.0.0.0".parse().unwrap(), address.port());
        assert_eq!((of(address, IpTransport::Tcp), of(everywhere, IpTransport::Tcp)), (None, None));
        assert_eq!(
            (own(everywhere, IpTransport::Tcp), own(address, IpTransport::Udp)),
            (Some(address), None)
        );
        let mut other = Command::new("sleep").arg("600").stdin(OwnedFd::from(socket)).spawn().unwrap();
        let holder = Some(format!("sleep (process {})", other.id()));
        // Until it has become `sleep`, it has this program's name.
        while of(address, IpTransport::Tcp) != holder {
            std::thread::yield_now();
        }
        assert_eq!(of(everywhere, IpTransport::Tcp), holder);
        assert_eq!((of(address, IpTransport::Udp), own(address, IpTransport::Tcp)), (None, None));
        other.kill().and_then(|()| other.wait()).unwrap();
    }
}
