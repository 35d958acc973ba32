//! `truepeer proxy`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::ProxySpec;

pub(super) const PAGE: Page = Page {
    which: table::PROXY,
    examples: &[
        example("HAProxy on this machine, a web server on port 80", "truepeer proxy -l 127.0.0.1:8080 -4 127.0.0.1:80 -6 [::1]:80"),
        example("A load balancer at 10.0.0.7, and SSH behind it", "truepeer proxy -l :2222 -4 127.0.0.1:22 -6 [::1]:22 --allow 10.0.0.7"),
        example(
            "frp on this machine, which may have local clients",
            "truepeer proxy -l 127.0.0.1:8080 -4 127.0.0.1:80 -6 [::1]:80 \\\n  --allow-claims loopback",
        ),
        example(
            "The sending end of a chain: no header in, a header out",
            "truepeer proxy -l :8080 -4 192.0.2.10:8443 -6 192.0.2.10:8443 --allow any \\\n  --header forbid --send-proxy v2",
        ),
        example(
            "All ports of a range, redirected by TPROXY, each to its own backend port",
            "truepeer proxy -l 0.0.0.0:25577 --listen-transparent -4 127.0.0.1 -6 [::1]",
        ),
        example(
            "TLS with clients that connect directly; the backend gets plain bytes",
            "truepeer proxy -l :443 --tls-cert site.pem --tls-key site.key \\\n  -4 127.0.0.1:80 -6 [::1]:80 --allow any",
        ),
        example(
            "DNS behind dnsdist (useProxyProtocol=true)",
            "truepeer proxy -p udp -l :5300 -4 127.0.0.1:53 -6 [::1]:53 --allow 10.0.0.7",
        ),
    ],
    notes: "\
Units: TIME is seconds (5), or has a unit (500ms, 5s, 2m, 1h). SIZE is bytes (4096), KiB (16KiB) or MiB.
PREFIX is an address, a prefix (10.0.0.0/8, 2001:db8::/32), or the word loopback, private or any.

SIGHUP reads all files again (lists, certificates, keys, authorities) and resolves host names again. New sessions follow what changed; open sessions are untouched. If anything is wrong, everything stays as it was, and the log says what. The options of a command line stay as they are; truepeer serve reads its file again with all keys.

SIGTERM and SIGINT close the listeners. Open sessions and flows may go on for --drain-timeout; a second signal ends them at once.

Single-dash long options (-allowed-subnets FILE, -listeners=4) are understood, too.",
};

pub(super) fn command(name: &'static str) -> Command {
    dress(ProxySpec::augment_args(Command::new(name)), &PAGE)
}
