//! `truepeer attach`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::{AttachArgs, OciHookArgs};

const PAGE: Page = Page {
    which: table::ATTACH,
    examples: &[
        example(
            "A load balancer at 10.0.0.7 and a web server that runs on this host",
            "truepeer attach --port 443 --allow 10.0.0.7",
        ),
        example(
            "Show its state; detach without cutting connections off",
            "truepeer attach status\ntruepeer attach detach",
        ),
        example(
            "A DNS server behind dnsdist; and one whose senders use another port than the server's",
            "truepeer attach --port 53/udp --allow 10.0.0.7\ntruepeer attach --port 53:5353/udp --allow 10.0.0.7",
        ),
        example(
            "A server in a container; and again whenever the container is started again",
            "truepeer attach --container web --port 80 --allow 10.0.0.7\ntruepeer attach --container web --port 80 --allow 10.0.0.7 --watch",
        ),
        example(
            "A server that sends first; some clients send no header",
            "truepeer attach --port 22 --allow 10.0.0.7 --header optional",
        ),
    ],
    notes: "\
The attachment stays when this command ends. Attach again to change its rules or to upgrade it (open connections are unaffected); detach to end it. Connections of senders that are not allowed pass unchanged, as without truepeer. One exception: until --close-after, a client whose datagrams came through an allowed sender is answered through that sender, even if it sends directly meanwhile.",
};

const HOOK: Page = Page {
    which: table::OCI_HOOK,
    examples: &[example(
        "What the runtime does, by hand",
        "echo '{\"pid\": 4711, \"annotations\": {\"truepeer.dev/ports\": \"80\", \"truepeer.dev/allow\": \"10.0.0.7\"}}' | truepeer oci-hook",
    )],
    notes: "\
Annotations: truepeer.dev/ports and truepeer.dev/allow, and perhaps truepeer.dev/header and truepeer.dev/udp-dialect; their values are those of the options of truepeer attach, several separated by commas or blanks. A container without them starts as without truepeer. If an annotation is wrong, the container does not start, and the runtime shows the reason.",
};

pub(super) fn oci_hook() -> Command {
    dress(OciHookArgs::augment_args(Command::new("oci-hook")), &HOOK)
}

pub(super) fn command() -> Command {
    dress(AttachArgs::augment_args(Command::new("attach")), &PAGE)
}
