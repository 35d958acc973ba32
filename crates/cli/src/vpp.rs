//! `truepeer vpp`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::VppArgs;

const PAGE: Page = Page {
    which: table::VPP,
    examples: &[
        example(
            "Origin, proxy and client on one machine, each in a namespace of its own",
            "truepeer vpp up --loopback --core 1\ntruepeer vpp run --namespace server --core 2 -- nginx -c /path/to/nginx_server.conf",
        ),
        example(
            "The proxy between two network cards, or between two devices of the kernel's",
            "truepeer vpp up --ethernet 0001:01:00.0,0001:01:00.1 --core 1\ntruepeer vpp up --ethernet veth0,veth1",
        ),
        example(
            "The whole case at once, ten seconds (from the source tree: make demo-https)",
            "truepeer vpp demo -d 10s",
        ),
        example("What runs, and its end", "truepeer vpp status\ntruepeer vpp down"),
    ],
    notes: "VPP comes from FD.io: packages vpp and vpp-plugin-core.",
};

pub(super) fn command() -> Command {
    dress(VppArgs::augment_args(Command::new("vpp")), &PAGE)
}
