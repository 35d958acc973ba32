//! `truepeer routes`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::RoutesArgs;

const PAGE: Page = Page {
    which: table::ROUTES,
    examples: &[
        example("Print what a backend on this machine needs", "truepeer routes apply -4 127.0.0.1:443 -6 [::1]:443 --print"),
        example(
            "For a service without CAP_NET_ADMIN, in its unit file",
            "ExecStartPre=+truepeer routes apply -4 127.0.0.1:443\nExecStopPost=+truepeer routes remove",
        ),
    ],
    notes: "\
ACTION: show lists what is set, ours and others'; apply sets what is missing; remove removes what is ours.

`truepeer proxy` does the same by itself where it may (--routes auto), and undoes it when its last instance ends. What `apply` makes stays until `remove`.",
};

pub(super) fn command() -> Command {
    dress(RoutesArgs::augment_args(Command::new("routes")), &PAGE)
}
