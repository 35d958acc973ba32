//! `cargo install`, as in the README: one file, which contains its library.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use truepeer_testbed::{Bed, Program, Running, Test, User, workspace_dir};

use crate::PYTHON;
use crate::kit::{CLIENT4, Talk, V4, header_of};
use crate::library::SERVER;

pub(crate) fn tests() -> Vec<Test> {
    let test =
        Test::new("an_installed_truepeer_carries_its_library", an_installed_truepeer_carries_its_library);
    // The first time, it compiles all dependencies.
    let test = test.needs_program("cargo").needs_program(PYTHON).needs_several_users();
    vec![test.long().time_limit(Duration::from_secs(3600))]
}

/// Offline: the dependencies were fetched to build this test. Not optimised, except for the library, which
/// always is. In a separate directory, because the other tests run the program in the usual one.
fn an_installed_truepeer_carries_its_library(bed: &Bed) -> anyhow::Result<()> {
    let built = Path::new(env!("CARGO_BIN_EXE_truepeer")).ancestors().nth(2).context("a target directory")?;
    let (target, root) = (built.join("installed"), bed.dir().join("root"));
    let install =
        ["install", "--debug", "--offline", "--locked", "--path", "crates/truepeer", "--target-dir"];
    let install = Program::new("cargo").args(install).arg(&target).arg("--root").arg(&root);
    let install = install.dir(workspace_dir()).start(bed)?;
    to_its_end(&install)?;
    // The build directory is out of reach from here on: the installed file must suffice.
    Program::new("mount").args(["-t", "tmpfs", "none"]).arg(&target).run(bed)?;
    let program = Program::new(PYTHON).arg("-u").arg(bed.write("server.py", SERVER)?).as_user(User::TESTER);
    let installed = root.join("bin/truepeer");
    for via in ["preload", "notify", "auto"] {
        let server = program.clone().launched_by(&installed, &["run", "--via", via, "--"]).start(bed)?;
        server.wait_listening(V4)?;
        let header = header_of(CLIENT4)?;
        for pieces in [&[&header[..], b"x"][..], &[&header[..20], &header[20..], b"x"]] {
            let saw = Talk::Plain.ask(V4, pieces).with_context(|| via.to_owned())?;
            ensure!(saw.to_string() == CLIENT4, "{saw} was seen by {via}");
        }
        server.stop()?;
    }
    Ok(())
}

/// Without a time limit: the test has its own.
fn to_its_end(program: &Running) -> anyhow::Result<()> {
    while program.is_alive() {
        thread::sleep(Duration::from_millis(100));
    }
    ensure!(program.wait_end()?.success(), "{}", program.log());
    Ok(())
}
