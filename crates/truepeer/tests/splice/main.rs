//! `proxy --splice auto`: sessions whose packets the kernel translates, and what remains of them in truepeer.

mod life;

use std::process::ExitCode;

use truepeer_testbed::matrix::{self, ByProxy};

fn main() -> ExitCode {
    let mut all = life::tests();
    all.extend(matrix::tests(ByProxy::new(env!("CARGO_BIN_EXE_truepeer")).spliced()));
    truepeer_testbed::main(all)
}
