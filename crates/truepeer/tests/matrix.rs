//! The matrix of behaviours, a column for each way of delivery and for who runs it.

use std::process::ExitCode;

use truepeer_testbed::Test;
use truepeer_testbed::matrix::{self, ByAttach, ByProxy, ByRun};

fn main() -> ExitCode {
    let exe = env!("CARGO_BIN_EXE_truepeer");
    let mut all = matrix::tests(ByProxy::new(exe));
    all.extend(matrix::tests(ByProxy::new(exe).as_plain_user()));
    all.extend(matrix::tests(ByAttach::new(exe)));
    // What needs no privilege is tested without; with all of them it is no different, and takes as long again.
    all.extend(matrix::tests(ByRun::new(exe, "notify").as_plain_user()));
    all.extend(matrix::tests(ByRun::new(exe, "notify")).into_iter().map(Test::long));
    truepeer_testbed::main(all)
}
