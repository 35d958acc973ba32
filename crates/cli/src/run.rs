//! `truepeer run`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::RunArgs;

const PAGE: Page = Page {
    which: table::RUN,
    examples: &[
        example("A web server behind a load balancer at 10.0.0.7", "truepeer run --allow 10.0.0.7 -- python3 -m http.server 8000"),
        example("Only its public port, not its admin port", "truepeer run --port 443 --allow 10.0.0.0/8 -- nginx -g 'daemon off;'"),
        example("HAProxy with send-proxy-v2 on this machine", "truepeer run -- redis-server --port 6379"),
    ],
    notes: "\
The command is started in this process's place: it keeps its process number, its terminal and its signals (by notify it is a child: signals are passed on, its exit status is truepeer's). Neither root nor a capability is needed.

Mechanism (--via): preload (a library that hooks libc's accept()), or notify (a supervisor that answers the program's system calls, for static programs such as those of Go, and for musl). auto chooses preload if the program would load the library.",
};

pub(super) fn command() -> Command {
    dress(RunArgs::augment_args(Command::new("run")), &PAGE)
}
