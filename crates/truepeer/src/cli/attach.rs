//! `truepeer attach`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::spec::{AttachArgs, table};

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
        example("A server in a container", "truepeer attach --container web --port 80 --allow 10.0.0.7"),
        example(
            "A server that sends first; some clients send no header",
            "truepeer attach --port 22 --allow 10.0.0.7 --header optional",
        ),
    ],
    notes: "\
The attachment stays when this command ends. Attach again to change its rules or to upgrade it (open connections are unaffected); detach to end it. Connections of senders that are not allowed pass unchanged, as without truepeer. One exception: until --close-after, a client whose datagrams came through an allowed sender is answered through that sender, even if it sends directly meanwhile.",
};

pub(super) fn command() -> Command {
    dress(AttachArgs::augment_args(Command::new("attach")), &PAGE)
}
