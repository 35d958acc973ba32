//! `truepeer vpp`.

use clap::{Args as _, Command};

use crate::spec::VppArgs;

const AFTER_HELP: &str = "\
VPP comes from FD.io: packages vpp and vpp-plugin-core.

Examples:
  Origin, proxy and client on one machine, each in a namespace of its own:
    truepeer vpp up --loopback --core 1
    truepeer vpp run --namespace server --core 2 -- nginx -c /path/to/nginx_server.conf
  The proxy between two network cards, or between two devices of the kernel's:
    truepeer vpp up --ethernet 0001:01:00.0,0001:01:00.1 --core 1
    truepeer vpp up --ethernet veth0,veth1
  The whole case at once, ten seconds (from the source tree: make demo-https):
    truepeer vpp demo -d 10s
  What runs, and its end:
    truepeer vpp status
    truepeer vpp down";

pub(super) fn command() -> Command {
    VppArgs::augment_args(Command::new("vpp")).after_help(AFTER_HELP)
}
