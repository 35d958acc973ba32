//! mmproxy-rs 0.2: its options have the same names, short and long, in `truepeer proxy`.

use truepeer_config::plan::Defaults;

pub(super) const USAGE: &str = "\
truepeer in the place of mmproxy-rs. Its options, with its defaults:
  -4, --ipv4 ADDR (127.0.0.1:443)   -6, --ipv6 ADDR ([::1]:443)   -p, --protocol tcp
  -a, --allowed-subnets FILE (everybody)   -l, --listen-addr ADDR (0.0.0.0:8443)
  --listeners N (1)   -c, --close-after SECONDS (60)   -m, --mark N (0)
Everybody may send, headers may claim loopback addresses, and routing is left to you, as there.
SIGTERM ends it at once; SIGHUP reads the FILE again.";

/// As go-mmproxy, on which it was modelled.
pub(super) fn defaults() -> Defaults {
    super::go_mmproxy::defaults()
}
