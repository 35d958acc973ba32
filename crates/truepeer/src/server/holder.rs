//! Finds the program that holds an address that can't be bound, if this user may see it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::OnceLock;

use truepeer_sys::socket::is_v6_only;

use truepeer_config::plan::{EntryConfig, ProcessConfig};
use truepeer_ops::doctor::listening::{self, Socket};
use truepeer_routes::item::IpTransport;

/// The result of [`look_ahead`].
static SEEN: OnceLock<Vec<(SocketAddr, IpTransport, String)>> = OnceLock::new();

/// A socket that can't be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) address: SocketAddr,
    pub(super) transport: IpTransport,
    /// IPV6_V6ONLY.
    pub(super) v6_only: bool,
}

/// Looks for programs on the listeners' addresses while this process may still see other users' files.
pub(super) fn look_ahead(process: &ProcessConfig) {
    let listeners =
        process.entries.iter().filter_map(EntryConfig::relay).flat_map(|config| &config.listeners);
    let found = listeners.filter_map(|listener| {
        let (address, transport) = (listener.bind, listener.protocol.into());
        // Whether it would share its port with IPv4 is not known yet.
        Some((address, transport, find(Wanted { address, transport, v6_only: false })?))
    });
    let _ = SEEN.set(found.collect());
}

/// Returns, for example, `haproxy (process 123)`: the first other process found with a socket on the address.
pub(super) fn of(wanted: Wanted) -> Option<String> {
    let seen = || {
        let mut seen = SEEN.get()?.iter();
        let is_it = |(bind, of, _): &&(_, _, _)| (*bind, *of) == (wanted.address, wanted.transport);
        seen.find(is_it).map(|(_, _, holder)| holder.clone())
    };
    find(wanted).or_else(seen)
}

/// The socket of this process that is in the way of an address.
pub(super) fn own(wanted: Wanted) -> Option<SocketAddr> {
    let own = open_sockets(Path::new("/proc/self"));
    let is_it = |socket: &Socket| {
        let number = own.get(&socket.inode);
        number.is_some_and(|number| is_in_the_way(socket, is_v6_only(*number), wanted))
    };
    listening::sockets_of(wanted.transport).into_iter().find(is_it).map(|socket| socket.address)
}

fn find(wanted: Wanted) -> Option<String> {
    // Nobody tells the option of another program's socket here: it may take IPv4.
    let sockets = listening::sockets_of(wanted.transport);
    let holders: Vec<u64> = sockets
        .iter()
        .filter(|socket| is_in_the_way(socket, false, wanted))
        .map(|socket| socket.inode)
        .collect();
    // Usually. A walk through all processes would cost much.
    if holders.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let number: u32 = process.file_name().to_str()?.parse().ok()?;
        let path = process.path();
        let is_holder =
            number != std::process::id() && open_sockets(&path).keys().any(|inode| holders.contains(inode));
        let name = fs::read_to_string(path.join("comm")).ok()?;
        is_holder.then(|| format!("{} (process {number})", name.trim_end()))
    })
}

/// The descriptors of a process's sockets, by inode, as far as this user may see them.
fn open_sockets(process: &Path) -> BTreeMap<u64, RawFd> {
    let inode = |file: fs::DirEntry| {
        let target = fs::read_link(file.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((inode, file.file_name().to_str()?.parse().ok()?))
    };
    let files = fs::read_dir(process.join("fd")).into_iter().flatten();
    files.flatten().filter_map(inode).collect()
}

/// A wildcard address conflicts with every address of its port, in the families that it takes.
fn is_in_the_way(socket: &Socket, is_v6_only: bool, wanted: Wanted) -> bool {
    let (bound, other) = (socket.address.ip().to_canonical(), wanted.address.ip().to_canonical());
    // IPv4, IPv6.
    let takes =
        |ip: IpAddr, is_v6_only: bool| [ip.is_ipv4() || ip.is_unspecified() && !is_v6_only, ip.is_ipv6()];
    let (own, others) = (takes(bound, is_v6_only), takes(other, wanted.v6_only));
    let share_a_family = own.iter().zip(others).any(|(own, other)| *own && other);
    socket.address.port() == wanted.address.port()
        && share_a_family
        && (bound == other || bound.is_unspecified() || other.is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::process::Command;

    use super::*;

    fn tcp(address: SocketAddr) -> Wanted {
        Wanted { address, transport: IpTransport::Tcp, v6_only: false }
    }

    #[test]
    fn another_program_is_found_as_the_holder_and_this_one_never() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let everywhere = SocketAddr::new("0.0.0.0".parse().unwrap(), address.port());
        let by_udp = Wanted { transport: IpTransport::Udp, ..tcp(address) };
        assert_eq!((of(tcp(address)), of(tcp(everywhere))), (None, None));
        assert_eq!((own(tcp(everywhere)), own(by_udp)), (Some(address), None));
        let mut other = Command::new("sleep").arg("600").stdin(OwnedFd::from(socket)).spawn().unwrap();
        let holder = Some(format!("sleep (process {})", other.id()));
        // Until it has become `sleep`, it has this program's name.
        while of(tcp(address)) != holder {
            std::thread::yield_now();
        }
        assert_eq!(of(tcp(everywhere)), holder);
        assert_eq!((of(by_udp), own(tcp(address))), (None, None));
        other.kill().and_then(|()| other.wait()).unwrap();
    }

    #[test]
    fn a_socket_of_the_other_family_is_not_in_the_way() {
        let v6_only = |ip: &str, v6_only, port| {
            let address = SocketAddr::new(ip.parse().unwrap(), port);
            own(Wanted { v6_only, ..tcp(address) })
        };
        let socket = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(v6_only("::", false, address.port()), Some(address));
        assert_eq!(v6_only("::", true, address.port()), None);
        assert_eq!(v6_only("::1", false, address.port()), None);
        drop(socket);
        let any = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None).unwrap();
        socket.set_only_v6(true).unwrap();
        socket.bind(&any.into()).and_then(|()| socket.listen(1)).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(v6_only("0.0.0.0", false, address.port()), None);
        assert_eq!(v6_only("::1", false, address.port()), Some(address));
    }
}
