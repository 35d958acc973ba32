//! The rules and routes that bring replies back: created in private network namespaces, and proved by the
//! client address that a backend sees.

mod commands;
mod listening;
mod lost;
mod owners;
mod places;
mod reloads;
mod support;
mod tproxy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut all = places::tests();
    all.extend(owners::tests());
    all.extend(commands::tests());
    all.extend(tproxy::tests());
    all.extend(listening::tests());
    all.extend(lost::tests());
    all.extend(reloads::tests());
    truepeer_testbed::main(all)
}
