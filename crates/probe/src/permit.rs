//! What may be probed: this machine and private networks. Others belong to somebody who has to agree.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The target is not this machine's or in a private network, and nobody has said that it may be probed.
#[derive(Debug, thiserror::Error)]
#[error("{0} is neither loopback nor private: if it is yours to probe, add --yes-i-may {ip}", ip = .0.ip())]
pub struct NotPermitted(pub SocketAddr);

/// Whether `target` may be probed; `named` are the addresses of `--yes-i-may`.
///
/// # Errors
/// [`NotPermitted`].
pub fn permit(target: SocketAddr, named: &[IpAddr]) -> Result<(), NotPermitted> {
    let ip = target.ip().to_canonical();
    let is_near = match ip {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private(),
        IpAddr::V6(v6) => v6 == Ipv6Addr::LOCALHOST || v6.is_unique_local(),
    };
    let is_named = named.iter().any(|address| address.to_canonical() == ip);
    if is_near || is_named { Ok(()) } else { Err(NotPermitted(target)) }
}

#[cfg(test)]
mod tests {
    use super::permit;

    #[test]
    fn only_near_or_named_targets_are_probed() {
        let may = |target: &str, named: &[&str]| {
            let named: Vec<_> = named.iter().map(|address| address.parse().expect(address)).collect();
            permit(target.parse().expect(target), &named)
        };
        for near in ["127.0.0.9:80", "[::1]:80", "10.0.0.1:1", "192.168.7.1:1", "[fd00::1]:1"] {
            assert!(may(near, &[]).is_ok(), "{near}");
        }
        for far in [
            "203.0.113.1:80",
            "[2001:db8::1]:80",
            "[::ffff:203.0.113.1]:80",
            "100.64.0.1:1",
            "0.0.0.0:1",
            "169.254.169.254:80",
        ] {
            assert!(may(far, &["203.0.113.2"]).is_err(), "{far}");
        }
        assert!(may("[::ffff:203.0.113.1]:80", &["203.0.113.1"]).is_ok());
        let refused = may("203.0.113.1:80", &[]).expect_err("far").to_string();
        assert!(refused.ends_with("add --yes-i-may 203.0.113.1"), "{refused}");
    }
}
