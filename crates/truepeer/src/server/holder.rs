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

/// Returns, for example, `haproxy (process 123)`: the first process found with a socket on the address.
pub(super) fn of(address: SocketAddr, transport: IpTransport) -> Option<String> {
    let seen = || {
        let mut seen = SEEN.get()?.iter();
        seen.find(|(bind, of, _)| (*bind, *of) == (address, transport)).map(|(_, _, holder)| holder.clone())
    };
    find(address, transport).or_else(seen)
}

fn find(address: SocketAddr, transport: IpTransport) -> Option<String> {
    let sockets = listening::sockets_of(transport);
    let holders: Vec<u64> =
        sockets.iter().filter(|socket| is_in_the_way(socket, address)).map(|socket| socket.inode).collect();
    // Usually. A walk through all processes would cost much.
    if holders.is_empty() {
        return None;
    }
    let link = |inode: &u64| format!("socket:[{inode}]");
    let links: Vec<String> = holders.iter().map(link).collect();
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let number: u32 = process.file_name().to_str()?.parse().ok()?;
        let path = process.path();
        let is_holder = fs::read_dir(path.join("fd")).ok()?.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|target| links.iter().any(|link| target == Path::new(link)))
        });
        let name = fs::read_to_string(path.join("comm")).ok()?;
        is_holder.then(|| format!("{} (process {number})", name.trim_end()))
    })
}

/// A wildcard address conflicts with every address of its port.
fn is_in_the_way(socket: &Socket, address: SocketAddr) -> bool {
    let (bound, wanted) = (socket.address.ip().to_canonical(), address.ip().to_canonical());
    socket.address.port() == address.port()
        && (bound == wanted || bound.is_unspecified() || wanted.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_found_as_its_own_holder() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let holder = of(address, IpTransport::Tcp).unwrap();
        assert!(holder.ends_with(&format!("(process {})", std::process::id())), "{holder}");
        let everywhere = SocketAddr::new("0.0.0.0".parse().unwrap(), address.port());
        assert_eq!(of(everywhere, IpTransport::Tcp), Some(holder));
        assert_eq!(of(address, IpTransport::Udp), None);
    }
}
