//! What a connection from this host may bring to a listener. `truepeer doctor` asks, so that its round trip
//! is not refused: a refusal would be logged, and would alarm somebody.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use truepeer_config::plan::CheckedListener;
use truepeer_ops::admin::{FromHere, Trial};
use truepeer_policy::{HeaderRule, Refusal, SenderAddr};
use truepeer_proto::{Addresses, Command, Header, Tlvs, Transport, Version, Versions};
use truepeer_routes::item::IpFamily;

/// The port of the example client.
const PORT: u16 = 50_000;

/// For each address by which this host reaches the listener.
pub(super) fn from_here(listener: &CheckedListener, addresses: &[SocketAddr]) -> Vec<FromHere> {
    let reached = addresses.iter().flat_map(|address| reached(*address, listener.v6_only));
    reached.map(|to| FromHere { to, may: trial(listener, to) }).collect()
}

/// A wildcard address stands for loopback: of both families, if an IPv6 socket takes IPv4 as well.
fn reached(address: SocketAddr, v6_only: bool) -> Vec<SocketAddr> {
    let ips: Vec<IpAddr> = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
        IpAddr::V6(ip) if ip.is_unspecified() && v6_only => vec![Ipv6Addr::LOCALHOST.into()],
        IpAddr::V6(ip) if ip.is_unspecified() => {
            vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]
        }
        ip => vec![ip],
    };
    ips.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}

fn trial(listener: &CheckedListener, to: SocketAddr) -> Trial {
    // A connection from this host to an address of its own comes from there.
    let sender = SenderAddr::new(SocketAddr::new(to.ip(), PORT));
    let judged = listener.policy.admit(sender).and_then(|rule| judge(listener, to, sender, rule));
    match judged {
        Err(refusal) => Trial::Refused(refusal.reason().to_owned()),
        Ok(_) if listener.tls.is_some() || listener.config.http.is_some() => Trial::Spoken,
        Ok(trial) => trial,
    }
}

fn judge(
    listener: &CheckedListener,
    to: SocketAddr,
    sender: SenderAddr,
    rule: HeaderRule,
) -> Result<Trial, Refusal> {
    let came_to = || Some(to.port());
    if rule == HeaderRule::Forbid {
        return listener.policy.route_at(sender, None, came_to).map(|_| Trial::NoHeader);
    }
    let is_v1 = listener.config.senders.versions() == Versions::V1;
    let header = Header {
        version: if is_v1 { Version::V1 } else { Version::V2 },
        command: Command::Proxy,
        addresses: Addresses::Inet {
            transport: Transport::Stream,
            source: SocketAddr::new(IpFamily::of(to.ip()).example_client(), PORT),
            destination: to,
        },
        tlvs: Tlvs::default(),
        bytes: &[],
    };
    listener.policy.route_at(sender, Some(&header), came_to)?;
    Ok(if is_v1 { Trial::V1 } else { Trial::V2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_address_is_reached_by_loopback() {
        let reached = |address: &str, v6_only| -> Vec<String> {
            let reached = reached(address.parse().unwrap(), v6_only);
            reached.iter().map(ToString::to_string).collect()
        };
        assert_eq!(reached("0.0.0.0:443", false), ["127.0.0.1:443"]);
        assert_eq!(reached("[::]:443", false), ["[::1]:443", "127.0.0.1:443"]);
        assert_eq!(reached("[::]:443", true), ["[::1]:443"]);
        assert_eq!(reached("192.0.2.9:443", false), ["192.0.2.9:443"]);
    }
}
