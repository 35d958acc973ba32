//! `truepeer connect`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::ConnectArgs;

const PAGE: Page = Page {
    which: table::CONNECT,
    examples: &[
        example(
            "Test how a server treats a client",
            "truepeer connect --from 203.0.113.7:5000 -- nc 127.0.0.1 9090",
        ),
        example(
            "Headers for one network and port only",
            "truepeer connect --send-proxy v1 --to 10.0.0.0/8:443 -- curl https://10.0.0.1/",
        ),
    ],
    notes: "",
};

pub(super) fn command() -> Command {
    dress(ConnectArgs::augment_args(Command::new("connect")), &PAGE)
}
