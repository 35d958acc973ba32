//! `truepeer connect`, the library under the names of libproxyproto, and what is the library's own. What `truepeer run` must
//! show by either mechanism is in `matrix` and `run_notify`.

mod connect;
mod dropin;
mod library;

use std::net::TcpListener;
use std::process::ExitCode;

use anyhow::Context;
use truepeer_testbed::{Bed, Program, User};

/// The machine's own, which every user may run.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

fn main() -> ExitCode {
    let mut all = connect::tests();
    all.extend(dropin::tests());
    all.extend(library::tests());
    truepeer_testbed::main(all)
}

/// A listener of the test's own. Another test may be starting a program, which has a copy of the last one until it executes.
pub(crate) fn listen(bed: &Bed, address: &str) -> anyhow::Result<TcpListener> {
    let mut listener = None;
    bed.wait_for("the address to be free", || {
        listener = TcpListener::bind(address).ok();
        listener.is_some()
    })?;
    listener.context("a listener")
}

/// `truepeer WORDS`.
pub(crate) fn truepeer(words: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_truepeer")).args(words)
}

/// A Python script, by a user without privileges.
pub(crate) fn python(bed: &Bed, script: &str) -> anyhow::Result<Program> {
    let file = bed.write(&bed.fresh_name("script.py"), script)?;
    Ok(Program::new(PYTHON).arg("-u").arg(file).as_user(User::TESTER))
}
