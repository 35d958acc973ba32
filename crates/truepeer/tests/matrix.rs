//! The matrix of behaviours: a column for each way of delivery and each kind of user.

use std::process::ExitCode;

use truepeer_testbed::Test;
use truepeer_testbed::matrix::{self, ByAttach, ByProxy, ByRun};

fn main() -> ExitCode {
    let exe = env!("CARGO_BIN_EXE_truepeer");
    let mut all = matrix::tests(ByProxy::new(exe));
    all.extend(matrix::tests(ByProxy::new(exe).as_plain_user()));
    all.extend(matrix::tests(ByAttach::new(exe)));
    // Cases that need no privilege are tested without. With all privileges nothing differs, and it takes
    // twice as long.
    for via in ["preload", "notify"] {
        all.extend(without_bulk(matrix::tests(ByRun::new(exe, via).as_plain_user())));
        all.extend(matrix::tests(ByRun::new(exe, via)).into_iter().map(Test::long));
    }
    truepeer_testbed::main(all)
}

/// `run` touches no byte after the header, so one large body is enough.
fn without_bulk(mut tests: Vec<Test>) -> Vec<Test> {
    let is_bulk =
        |name: &str| ["each_way", "_down_", "_slow_", "stalled_bulk"].iter().any(|word| name.contains(word));
    tests.retain(|test| !is_bulk(test.name()));
    tests
}
