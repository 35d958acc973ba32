//! Names and wildcards as addresses. Names are resolved once for each plan.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use truepeer_policy::BackendAddr;

use super::passed;
use super::problem::{OptionName, Problem};
use crate::spec::{Family, HostPort, ListenAddr};

/// The backend for clients of `family`: an address of that family if the host has one (a dual-stack backend
/// is reached over the client's family), otherwise its first.
pub(super) fn backend(written: &HostPort, place: OptionName, family: Family) -> Result<BackendAddr, Problem> {
    let addrs = resolve(written, place)?;
    let own = addrs.iter().find(|addr| family.has(BackendAddr::new(**addr).get()));
    match own.or(addrs.first()) {
        Some(&addr) => Ok(BackendAddr::new(addr)),
        None => Err(Problem::NoAddress { place, name: written.to_string() }),
    }
}

/// The address of a listener that this program opens or is passed.
pub(super) fn own_listener(written: &ListenAddr) -> Result<SocketAddr, Problem> {
    own_listener_of(written, OptionName("listen"))
}

/// The same for another option.
pub(super) fn own_listener_of(written: &ListenAddr, place: OptionName) -> Result<SocketAddr, Problem> {
    match written {
        ListenAddr::Passed(name) => passed::address(name),
        ListenAddr::Address(_) => listen_at(written, place),
    }
}

/// The address of a listener.
pub(super) fn listen(written: &ListenAddr) -> Result<SocketAddr, Problem> {
    listen_at(written, OptionName("listen"))
}

fn listen_at(written: &ListenAddr, place: OptionName) -> Result<SocketAddr, Problem> {
    let ListenAddr::Address(host_port) = written else {
        let value = format!(" {written}");
        return Err(Problem::Value { place, value, expected: "expected [ADDR]:PORT".to_owned() });
    };
    if matches!(host_port.host(), "" | "*") {
        return Ok(SocketAddr::new(every_address(), host_port.port()));
    }
    let first = resolve(host_port, place)?.into_iter().next();
    first.ok_or_else(|| Problem::NoAddress { place, name: host_port.to_string() })
}

fn resolve(written: &HostPort, place: OptionName) -> Result<Vec<SocketAddr>, Problem> {
    let addrs = (written.host(), written.port()).to_socket_addrs();
    Ok(addrs.map_err(|source| unresolved(written, place, source))?.collect())
}

fn unresolved(written: &HostPort, place: OptionName, source: io::Error) -> Problem {
    let name = written.to_string();
    let device = written.host();
    let is_name = device.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if place.0 == "listen" && is_name && Path::new("/sys/class/net").join(device).exists() {
        return Problem::Device { place, name, device: device.to_owned() };
    }
    Problem::Resolve { place, name, source }
}

/// `::` accepts IPv4 connections, too; a kernel without IPv6 can't bind it.
fn every_address() -> IpAddr {
    if Path::new("/proc/net/if_inet6").exists() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

/// Checks `-4 [::1]:80`: IPv4 clients can't be shown to an IPv6 backend unless their addresses are mapped or
/// not used. Only a literal address can be checked before resolving. `ways`: options by which these clients
/// could be shown there.
pub(super) fn refuse_ipv6(written: &HostPort, ways: &str) -> Result<(), Problem> {
    match address(written) {
        Some(IpAddr::V6(_)) => Err(Problem::Family {
            place: OptionName("ipv4"),
            backend: written.to_string(),
            is: "an IPv6 address, for IPv4 clients",
            expected: format!("{} {written}{ways}", OptionName("ipv6")),
        }),
        _ => Ok(()),
    }
}

/// The host, if it is an address and not a name.
pub(super) fn address(written: &HostPort) -> Option<IpAddr> {
    written.host().parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_may_leave_the_host_out() {
        let bind = |text: &str| listen(&text.parse().unwrap()).unwrap();
        assert_eq!(bind("0.0.0.0:8443"), "0.0.0.0:8443".parse().unwrap());
        assert_eq!(bind("[::]:8443"), "[::]:8443".parse().unwrap());
        for text in [":8443", "*:8443"] {
            assert!(bind(text).ip().is_unspecified() && bind(text).port() == 8443);
        }
    }

    #[test]
    fn the_clients_family_is_preferred_and_the_other_taken_where_it_is_all_there_is() {
        let backend = |text: &str, family| {
            backend(&text.parse().unwrap(), OptionName("ipv4"), family).unwrap().to_string()
        };
        assert_eq!(backend("127.0.0.1:1", Family::Ipv4), "127.0.0.1:1");
        assert_eq!(backend("[2001:db8::1]:1", Family::Ipv4), "[2001:db8::1]:1");
        assert_eq!(backend("[::ffff:192.0.2.1]:1", Family::Ipv4), "192.0.2.1:1");
        assert_eq!(backend("192.0.2.1:1", Family::Ipv6), "192.0.2.1:1");
        assert_eq!(backend("localhost:1", Family::Ipv4), "127.0.0.1:1");
    }

    #[test]
    fn an_unknown_host_is_named_with_its_option() {
        let nobody = HostPort::new("nobody.invalid", 80);
        let error = backend(&nobody, OptionName("ipv4"), Family::Ipv4).unwrap_err().to_string();
        assert!(error.starts_with("-4 nobody.invalid:80: can't resolve"), "{error}");
    }

    #[test]
    fn a_device_in_the_place_of_an_address_is_named() {
        let loopback = HostPort::new("lo", 80);
        let error =
            |place| unresolved(&loopback, OptionName(place), io::ErrorKind::NotFound.into()).to_string();
        assert!(error("listen").starts_with("--listen lo:80: lo is a network device"), "{}", error("listen"));
        assert!(error("ipv4").contains("can't resolve the host name"), "{}", error("ipv4"));
    }

    #[test]
    fn an_ipv6_address_for_ipv4_clients_is_refused() {
        let judge = |text: &str| refuse_ipv6(&text.parse().unwrap(), "");
        let error = judge("[::1]:80").unwrap_err().to_string();
        assert!(
            error.starts_with("-4 [::1]:80: an IPv6 address") && error.contains("-6 [::1]:80"),
            "{error}"
        );
        assert!(judge("127.0.0.1:80").is_ok() && judge("name.example:80").is_ok());
        assert!(judge("[::ffff:127.0.0.1]:80").is_ok(), "it is an IPv4 address");
    }
}
