//! The matrix of behaviours, a column for each way of delivery and for who runs it.

use std::process::ExitCode;

use truepeer_testbed::matrix::{self, ByAttach, ByProxy};

fn main() -> ExitCode {
    let exe = env!("CARGO_BIN_EXE_truepeer");
    let mut all = matrix::tests(ByProxy::new(exe));
    all.extend(matrix::tests(ByProxy::new(exe).as_plain_user()));
    all.extend(matrix::tests(ByAttach::new(exe)));
    truepeer_testbed::main(all)
}
