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
    for via in ["preload", "notify"] {
        all.extend(without_bulk(matrix::tests(ByRun::new(exe, via).as_plain_user())));
        all.extend(matrix::tests(ByRun::new(exe, via)).into_iter().map(Test::long));
    }
    truepeer_testbed::main(all)
}

/// `run` touches no byte behind the header, so one large body tells what ten would.
fn without_bulk(mut tests: Vec<Test>) -> Vec<Test> {
    let is_bulk =
        |name: &str| ["each_way", "_down_", "_slow_", "stalled_bulk"].iter().any(|word| name.contains(word));
    tests.retain(|test| !is_bulk(test.name()));
    tests
}
