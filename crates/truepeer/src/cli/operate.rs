//! `truepeer status` and `sessions`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::spec::{SessionsArgs, StatusArgs, table};

const STATUS: Page = Page {
    which: table::STATUS,
    examples: &[
        example("The truepeer of the usual configuration file", "truepeer status"),
        example(
            "One that was started as: truepeer proxy --admin /run/tp.sock …",
            "truepeer status --admin /run/tp.sock",
        ),
    ],
    notes: "Counters are since the start. The exit status is 1 if no truepeer answers.",
};

const SESSIONS: Page = Page {
    which: table::SESSIONS,
    examples: &[
        example("All that are open", "truepeer sessions"),
        example("Those of one network, for machines", "truepeer sessions --client 192.0.2.0/24 --json"),
        example("End them: both ends see a reset", "truepeer sessions --client 192.0.2.0/24 --kill"),
    ],
    notes: "\
A session whose client is not known yet (its header has not come) is listed under its sender. STAGE is header, handshake (TLS), connecting, relaying, or idle (HTTP, between requests). UP and DOWN are bytes to the backend and to the sender.

--kill needs --client, so that not all sessions end by mistake; --client any means all.",
};

pub(super) fn status() -> Command {
    dress(StatusArgs::augment_args(Command::new("status")), &STATUS)
}

pub(super) fn sessions() -> Command {
    dress(SessionsArgs::augment_args(Command::new("sessions")), &SESSIONS)
}
