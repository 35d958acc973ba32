//! Where an address is, seen from this network namespace.

use std::net::IpAddr;

/// Where a backend is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendPlace {
    /// On `127.0.0.0/8` or `::1`.
    Loopback,
    /// On another address of this network namespace.
    Local,
    /// On another host or in another container.
    Elsewhere,
}

impl BackendPlace {
    /// Sorts an address; `local` lists the addresses of this network namespace.
    pub(crate) fn of(address: IpAddr, local: &[IpAddr]) -> Self {
        let address = address.to_canonical();
        // connect(2) to the unspecified address goes to loopback
        if address.is_loopback() || address.is_unspecified() {
            Self::Loopback
        } else if local.contains(&address) {
            Self::Local
        } else {
            Self::Elsewhere
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_on_loopback_here_or_elsewhere() {
        let local = ["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()];
        for (address, place) in [
            ("127.0.0.1", BackendPlace::Loopback),
            ("127.8.8.8", BackendPlace::Loopback),
            ("::1", BackendPlace::Loopback),
            ("::ffff:127.0.0.1", BackendPlace::Loopback),
            ("0.0.0.0", BackendPlace::Loopback),
            ("::", BackendPlace::Loopback),
            ("10.9.0.1", BackendPlace::Local),
            ("::ffff:10.9.0.1", BackendPlace::Local),
            ("fd00:9::1", BackendPlace::Local),
            ("10.9.0.2", BackendPlace::Elsewhere),
            ("fd00:9::2", BackendPlace::Elsewhere),
        ] {
            assert_eq!(BackendPlace::of(address.parse().unwrap(), &local), place, "{address}");
        }
    }
}
