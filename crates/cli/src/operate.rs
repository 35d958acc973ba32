//! `truepeer status`, `sessions` and `top`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::{SessionsArgs, StatusArgs, TopArgs};

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

const TOP: Page = Page {
    which: table::TOP,
    examples: &[
        example("The truepeer of the usual configuration file", "truepeer top"),
        example("On another machine", "ssh -t HOST truepeer top"),
    ],
    notes: "\
Shows rates, the open sessions and what is refused, and asks again every second. Type ? for the keys, q to quit. 80 columns and 24 lines show everything. While truepeer doesn't answer, the last values stay and the reason is shown; a truepeer that is restarted or upgraded is found again.

Needs a terminal. For scripts see truepeer status --json and truepeer sessions --json.",
};

pub(super) fn status() -> Command {
    dress(StatusArgs::augment_args(Command::new("status")), &STATUS)
}

pub(super) fn top() -> Command {
    dress(TopArgs::augment_args(Command::new("top")), &TOP)
}

pub(super) fn sessions() -> Command {
    dress(SessionsArgs::augment_args(Command::new("sessions")), &SESSIONS)
}
