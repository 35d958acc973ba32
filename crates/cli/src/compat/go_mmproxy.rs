//! go-mmproxy 2.3 (kzemek) and 2.1 (path-network): `flag` options, all of which `truepeer proxy` has by the
//! same name.

use std::time::Duration;

use truepeer_policy::{Destinations, PrefixSet};

use truepeer_config::plan::{Defaults, RoutesConfig, UsualBackends};
use truepeer_config::spec::RoutesMode;

pub(super) const USAGE: &str = "\
truepeer in the place of go-mmproxy. Its options, with its defaults:
  -l ADDR (0.0.0.0:8443)   -p tcp   -4 ADDR (127.0.0.1:443)   -6 ADDR ([::1]:443)
  -mark N (0)   -v 0|1|2 (0)   -allowed-subnets FILE (everybody)   -listeners N (1)
  -close-after SECONDS (60)   -dynamic-destination   -listen-transparent
Everybody may send, headers may claim loopback addresses and lead anywhere, and routing is left
to you, as there. SIGTERM ends it at once; SIGHUP reads the FILE again.";

/// As `--help` says them.
pub(super) const OWN_DEFAULTS: [(&str, &str); 7] = [
    ("ipv4", "127.0.0.1:443"),
    ("ipv6", "[::1]:443"),
    ("allow", "any"),
    ("allow_claims", "loopback and this host's own"),
    ("dynamic_allow", "any"),
    ("routes", "manual"),
    ("drain_timeout", "0s"),
];

/// Every host may send and claim any client, and a header may lead anywhere. The administrator sets up
/// routing.
pub(super) fn defaults() -> Defaults {
    Defaults {
        allow: PrefixSet::any(),
        backends: UsualBackends::EachAlone,
        claims: PrefixSet::loopback(),
        claims_host: true,
        dynamic_allow: Some(Destinations::any()),
        routes: RoutesConfig { mode: RoutesMode::Manual, ..RoutesConfig::default() },
        drain: Duration::ZERO,
        ..Defaults::default()
    }
}
