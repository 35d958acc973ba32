//! `truepeer run`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::spec::{RunArgs, table};

const PAGE: Page = Page {
    which: table::RUN,
    examples: &[
        example("A web server behind a load balancer at 10.0.0.7", "truepeer run --allow 10.0.0.7 -- python3 -m http.server 8000"),
        example("Only its public port, not its admin port", "truepeer run --port 443 --allow 10.0.0.0/8 -- nginx -g 'daemon off;'"),
        example("HAProxy with send-proxy-v2 on this machine", "truepeer run -- redis-server --port 6379"),
    ],
    notes: "\
The command is started in this process's place: it keeps its process number, its terminal and its signals (by notify it is a child: signals are passed on, its exit status is truepeer's). Neither root nor a capability is needed.

How (--via): preload (a library between the program and libc's accept()), or notify (a supervisor that the kernel asks, for static programs such as Go's, and musl's). auto chooses preload wherever the program would load it.",
};

pub(super) fn command() -> Command {
    dress(RunArgs::augment_args(Command::new("run")), &PAGE)
}
