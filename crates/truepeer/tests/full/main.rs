//! `proxy --splice full`: the kernel accepts senders, reads their headers and connects to backends by itself,
//! and leaves to truepeer what is left to decide.

mod blind;
mod chain;
mod changes;
mod doubt;
mod made;
mod stand;

use std::process::ExitCode;

use truepeer_testbed::matrix::{self, ByProxy};

fn main() -> ExitCode {
    let matrix = matrix::tests(ByProxy::new(env!("CARGO_BIN_EXE_truepeer")).full());
    let all = [made::tests(), doubt::tests(), changes::tests(), chain::tests(), blind::tests(), matrix];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
