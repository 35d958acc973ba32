//! The rules and routes that bring replies back: really made, in private network namespaces, and proved by what
//! a backend sees of a client that is not there.

mod commands;
mod owners;
mod places;
mod support;
mod tproxy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut all = places::tests();
    all.extend(owners::tests());
    all.extend(commands::tests());
    all.extend(tproxy::tests());
    truepeer_testbed::main(all)
}
