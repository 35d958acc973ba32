//! `truepeer attach` attacked with packets made by hand: what a kernel's own socket would not believe, attach does not believe either.

mod damage;
mod handshake;
mod holds;
mod kit;
mod paths;
mod stage;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [damage::tests(), handshake::tests(), paths::tests(), holds::tests()];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
