//! `truepeer reload` and `truepeer upgrade`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::{ReloadArgs, UpgradeArgs};

const RELOAD: Page = Page {
    which: table::RELOAD,
    examples: &[example("After the file was edited", "truepeer reload")],
    notes: "\
What has changed is printed and takes effect for new sessions; open ones go on. If anything in the file is wrong, everything stays as it was, the reason is printed and the exit status is 1. SIGHUP does the same.",
};

const UPGRADE: Page = Page {
    which: table::UPGRADE,
    examples: &[example("After a new version was installed", "truepeer upgrade")],
    notes: "\
Starts `truepeer serve --take-over` in the background and waits until it serves. The new process gets the listening sockets and the UDP flows of the running one, which ends with its last session, or after --drain-timeout. No connection is refused. If the new process can't start, the running one goes on, and the exit status is 1.",
};

pub(super) fn reload() -> Command {
    dress(ReloadArgs::augment_args(Command::new("reload")), &RELOAD)
}

pub(super) fn upgrade() -> Command {
    dress(UpgradeArgs::augment_args(Command::new("upgrade")), &UPGRADE)
}
