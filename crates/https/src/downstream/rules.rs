//! The rules of a listener that takes TLS off.

use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::{HeaderRule, Origin, Policy, PrefixSet, Route};
use truepeer_session::settings::ListenerSettings;

use crate::tls::ServerTls;

/// The rules of one listener.
#[derive(Debug, Clone)]
pub struct TlsListener {
    /// Timeouts and limits.
    pub settings: ListenerSettings,
    /// Decides who may connect, who the client is, and which origin is dialled.
    pub policy: Arc<Policy>,
    /// The TLS configuration, if clients use TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// How long a TLS handshake may take, with clients and with backends.
    pub handshake_timeout: Duration,
    /// The limit of connections for one client.
    pub per_client: PerClient,
}

/// The limit of connections for one client.
#[derive(Debug, Clone, Default)]
pub struct PerClient {
    /// `None`: [`super::WorkerState::usual_most_per_client`]; 0: any number.
    pub most: Option<usize>,
    /// Addresses that many clients share, such as a proxy's. They are not limited.
    pub shared: PrefixSet,
}

impl PerClient {
    /// Whether the client of `route` is identified individually.
    ///
    /// A sender that may name clients but has not (LOCAL, UNKNOWN, an optional header) stands for many
    /// clients, or connects for its own health checks. The same holds for a program on this machine, such
    /// as another proxy or an ssh tunnel.
    pub(super) fn counts(&self, route: &Route, rule: HeaderRule) -> bool {
        let client = route.client.ip();
        let is_one = match route.origin {
            Origin::Header => true,
            Origin::NoHeader => rule == HeaderRule::Forbid && !client.is_loopback(),
            Origin::Local | Origin::Unknown => false,
        };
        is_one && !self.shared.contains(client)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use truepeer_policy::{BackendAddr, ClientAddr, OnConflict};

    use super::*;

    fn route(client: &str, origin: Origin) -> Route {
        Route {
            client: ClientAddr::new(SocketAddr::new(client.parse().unwrap(), 5000)),
            origin,
            backend: BackendAddr::new("192.0.2.1:80".parse().unwrap()),
            source: None,
            on_conflict: OnConflict::Ephemeral,
            send_proxy: None,
            destination: None,
            special: None,
        }
    }

    #[test]
    fn clients_are_counted_only_where_they_are_identified() {
        let per_client = PerClient { most: None, shared: "10.0.0.0/8".parse().unwrap() };
        for (client, origin, rule, counts) in [
            ("203.0.113.7", Origin::NoHeader, HeaderRule::Forbid, true),
            ("203.0.113.7", Origin::Header, HeaderRule::Require, true),
            ("127.0.0.2", Origin::Header, HeaderRule::Require, true),
            // A sender that may name clients but has named none.
            ("203.0.113.7", Origin::NoHeader, HeaderRule::Optional, false),
            ("203.0.113.7", Origin::Local, HeaderRule::Require, false),
            ("203.0.113.7", Origin::Unknown, HeaderRule::Require, false),
            // Another proxy: on this machine, or trusted to name its clients in each request.
            ("127.0.0.1", Origin::NoHeader, HeaderRule::Forbid, false),
            ("::1", Origin::NoHeader, HeaderRule::Forbid, false),
            ("10.1.2.3", Origin::NoHeader, HeaderRule::Forbid, false),
            ("10.1.2.3", Origin::Header, HeaderRule::Require, false),
        ] {
            assert_eq!(
                per_client.counts(&route(client, origin), rule),
                counts,
                "{client} {origin:?} {rule:?}"
            );
        }
    }
}
