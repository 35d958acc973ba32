//! `truepeer https`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::HttpsSpec;

const PAGE: Page = Page {
    which: table::HTTPS,
    examples: &[
        example(
            "A site whose application listens on port 8080",
            "truepeer https --tls-cert site.pem --tls-key site.key \\\n  --origin http://127.0.0.1:8080",
        ),
        example(
            "Two sites, selected by the client's SNI; TLS towards the origin, too",
            "truepeer https --tls-cert a.pem --tls-key a.key --tls-cert b.pem --tls-key b.key \\\n  --origin https://app.internal --origin-ca ca.pem",
        ),
        example(
            "Behind a load balancer that sends PROXY headers; the application sees the clients' own addresses",
            "truepeer https -l :8443 --tls-cert site.pem --tls-key site.key \\\n  --origin http://127.0.0.1:8080 --allow 10.0.0.7 --header require \\\n  --client-address transparent",
        ),
        example(
            "Two applications: one for a host, one for a path of every other host; each is checked every 5 s",
            "truepeer https --tls-cert site.pem --tls-key site.key --origin http://127.0.0.1:8080 \\\n  --origin api.example=http://127.0.0.1:9000 --origin /static=http://127.0.0.1:7000 \\\n  --origin-health connect --origin-health api.example=/ready",
        ),
        example(
            "Browsers that ask by http:// are sent to https://",
            "truepeer https -l :443 --listen-http :80 --acme www.site.example \\\n  --origin http://127.0.0.1:8080",
        ),
        example(
            "Read only (403 for every method but GET and HEAD)",
            "truepeer https --tls-cert site.pem --tls-key site.key \\\n  --origin http://127.0.0.1:8080 --methods GET",
        ),
    ],
    notes: "\
Units: TIME is seconds (5), or has a unit (500ms, 5s, 2m, 1h). SIZE is bytes (4096), KiB (16KiB) or MiB (100MiB).

How the origin learns the client (--client-address):
  forwarded     each request has Forwarded and X-Forwarded-For, -Proto and -Host; all clients share connections. What clients write there themselves is removed, unless --trusted names them
  transparent   connections come from the client's own address (needs CAP_NET_RAW or CAP_NET_ADMIN, and routes)
  proxy         connections begin with a PROXY v2 header that names the client and its TLS, and serve one client each

Clients that leave: a request whose client resets its connection or stream is given up, and the origin's connection closed. A client of HTTP/1.1 that only closes its own direction (close_notify) gets its answer if that begins within 5 s.

SIGHUP reads all files again (certificates, keys, authorities, lists) and resolves host names again. New connections follow what changed, and resume no TLS session from before; open connections are untouched. If anything is wrong, everything stays as it was, and the log says what. The options of a command line stay as they are; truepeer serve reads its file again with all keys.",
};

pub(super) fn command() -> Command {
    dress(HttpsSpec::augment_args(Command::new("https")), &PAGE)
}
