//! Tests of the harness from outside: this binary runs itself with a set of tests that all end differently.

use std::env;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use truepeer_testbed::{Bed, Program, Test, skip, tests};

/// Set for the inner run.
const FIXTURES: &str = "TESTBED_FIXTURES";

fn says(bed: &Bed) -> anyhow::Result<()> {
    let program = Program::new("sh").args(["-c", "echo last words; sleep 600"]).start(bed)?;
    program.wait_for_log("last words")?;
    std::mem::forget(program); // keeps the program running, as if the test still held it
    Ok(())
}

fn fixtures() -> Vec<Test> {
    vec![
        Test::new("passes", |_| Ok(())),
        Test::new("fails", |bed| says(bed).and_then(|()| bail!("something is wrong"))),
        Test::new("panics", |_| panic!("out of paper")),
        Test::new("gives_up", |_| skip("no such machine")),
        Test::new("needs_what_is_not_there", |_| Ok(())).needs_program("no-such-program"),
        Test::new("takes_long", |_| Ok(())).long(),
        Test::new("hangs", |bed| says(bed).map(|()| std::thread::sleep(Duration::from_secs(600))))
            .give_up_after(Duration::from_secs(1)),
    ]
}

/// Runs the fixtures. Returns their output and whether the status was 0.
fn run_fixtures(args: &[&str], all: bool) -> anyhow::Result<(String, bool)> {
    let mut command = Command::new(env::current_exe()?);
    command.args(args).env(FIXTURES, "1").env_remove("TRUEPEER_TESTBED_INSIDE");
    if all {
        command.env("TRUEPEER_TEST_ALL", "1");
    } else {
        command.env_remove("TRUEPEER_TEST_ALL");
    }
    let output = command.output().context("this binary again")?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}

fn each_outcome_is_counted_as_its_own_kind(_: &Bed) -> anyhow::Result<()> {
    let start = Instant::now();
    let (output, good) = run_fixtures(&[], false)?;
    ensure!(!good && output.contains(" 1 passed; 3 failed; 3 ignored;"), "{output}");
    for part in [
        "no such machine",
        "no-such-program is neither",
        "make test-all",
        "out of paper",
        "something is wrong",
    ] {
        ensure!(output.contains(part), "{part:?} is not in\n{output}");
    }
    ensure!(output.matches("last words").count() == 2, "the programs' output is missing in\n{output}");
    ensure!(output.contains("timed out after 1s"), "{output}");
    ensure!(start.elapsed() < Duration::from_secs(300), "something hung: {:?}", start.elapsed());
    Ok(())
}

fn names_choose_among_tests(_: &Bed) -> anyhow::Result<()> {
    let (output, good) = run_fixtures(&["passes"], false)?;
    ensure!(
        good && output.contains(" 1 passed; 0 failed; 0 ignored; 0 measured; 6 filtered out"),
        "{output}"
    );
    let (output, good) = run_fixtures(&["--list"], false)?;
    ensure!(good && output.contains("gives_up: test"), "{output}");
    Ok(())
}

fn long_tests_run_when_asked_for(_: &Bed) -> anyhow::Result<()> {
    let (output, good) = run_fixtures(&["takes_long"], true)?;
    ensure!(good && output.contains(" 1 passed;"), "{output}");
    Ok(())
}

fn a_variable_left_in_a_shell_changes_no_machine(_: &Bed) -> anyhow::Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("passes").env(FIXTURES, "1").env("TRUEPEER_TESTBED_INSIDE", "all");
    let output = String::from_utf8(command.output()?.stdout)?;
    ensure!(output.contains(" 0 passed; 0 failed; 1 ignored;"), "{output}");
    ensure!(output.contains("this is no new network namespace"), "{output}");
    Ok(())
}

fn main() -> ExitCode {
    if env::var_os(FIXTURES).is_some() {
        return truepeer_testbed::main(fixtures());
    }
    truepeer_testbed::main(tests![
        each_outcome_is_counted_as_its_own_kind,
        names_choose_among_tests,
        long_tests_run_when_asked_for,
        a_variable_left_in_a_shell_changes_no_machine
    ])
}
