//! `truepeer run` by notification: real programs, and what is this mechanism's own. What every way must show is in `matrix`.

mod connects;
mod crowds;
mod kit;
mod lives;
mod programs;
mod sends;
mod sockets;

use std::process::ExitCode;

fn main() -> ExitCode {
    kit::choose("notify");
    let mut all = programs::tests();
    all.extend(sockets::tests());
    all.extend(lives::tests());
    all.extend(connects::tests());
    all.extend(sends::tests());
    all.extend(crowds::tests());
    truepeer_testbed::main(all)
}
