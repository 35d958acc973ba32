//! `truepeer attach`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::spec::{AttachArgs, table};

const PAGE: Page = Page {
    which: table::ATTACH,
    examples: &[
        example(
            "A load balancer at 10.0.0.7 in front of a web server that runs on this host",
            "truepeer attach --port 443 --allow 10.0.0.7",
        ),
        example(
            "What it does, and its end without cutting anybody off",
            "truepeer attach status\ntruepeer attach detach",
        ),
        example(
            "A DNS server behind dnsdist; and one whose senders use another port than it is bound to",
            "truepeer attach --port 53/udp --allow 10.0.0.7\ntruepeer attach --port 53:5353/udp --allow 10.0.0.7",
        ),
        example(
            "A server that speaks first, some of whose clients come without a header",
            "truepeer attach --port 22 --allow 10.0.0.7 --header optional",
        ),
    ],
    notes: "\
What is attached stays when this command ends. Attach again to change its rules or to upgrade it (no connection notices); detach to end it. Senders that are not allowed pass untouched, as if truepeer weren't there; only a client whose datagrams came through an allowed one is answered through that one until --close-after, even if it comes by itself meanwhile.",
};

pub(super) fn command() -> Command {
    dress(AttachArgs::augment_args(Command::new("attach")), &PAGE)
}
