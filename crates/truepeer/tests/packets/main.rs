//! `truepeer attach` attacked with packets made by hand: what a kernel's own socket would not believe, attach does not believe either.

mod holds;
mod kit;
mod stage;

use std::process::ExitCode;

fn main() -> ExitCode {
    truepeer_testbed::main(holds::tests())
}
