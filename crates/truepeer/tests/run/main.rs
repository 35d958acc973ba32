//! `truepeer run` and `connect` with the library: real programs, the names of libproxyproto, and tests of the
//! library alone. Tests of both mechanisms are shared with `run_notify`, or are in `matrix`.

#[path = "../run_notify/after_wait.rs"]
mod after_wait;
#[path = "../run_notify/bans.rs"]
mod bans;
mod beside;
#[path = "../run_notify/bodies.rs"]
mod bodies;
mod connect;
#[path = "../run_notify/connects.rs"]
mod connects;
mod copies;
#[path = "../run_notify/crowds.rs"]
mod crowds;
mod descriptors;
#[path = "../run_notify/destinations.rs"]
mod destinations;
mod dropin;
#[path = "../run_notify/edges.rs"]
mod edges;
mod filters;
mod holds;
#[path = "../run_notify/inherited.rs"]
mod inherited;
mod install;
#[path = "../run_notify/kit.rs"]
mod kit;
mod library;
#[path = "../run_notify/lives.rs"]
mod lives;
mod mail;
#[path = "../run_notify/names.rs"]
mod names;
#[path = "../run_notify/obstacles.rs"]
mod obstacles;
#[path = "../run_notify/obstructed.rs"]
mod obstructed;
#[path = "../run_notify/programs.rs"]
mod programs;
#[path = "../run_notify/rings.rs"]
mod rings;
#[path = "../run_notify/sends.rs"]
mod sends;
#[path = "../run_notify/sockets.rs"]
mod sockets;
mod without_library;

use std::net::TcpListener;
use std::process::ExitCode;

use anyhow::Context;
use truepeer_testbed::{Bed, Program, Test, User};

/// The machine's own, which every user may run.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Programs that only a supervisor can serve because they load no library, and the supervisor's own life.
const NOTIFYS: [&str; 8] = [
    "a_supervisor_that_is_stopped",
    "a_signal_to_all_three",
    "is_not_multiplied",
    "a_go_",
    "a_killed_supervisor",
    "may_go_to_the_background",
    "may_be_stopped_and_continued",
    "unsupported_programs_are_refused_with_a_reason",
];

fn main() -> ExitCode {
    kit::choose("preload");
    let shared = [
        after_wait::tests(),
        bans::tests(),
        programs::tests(),
        sockets::tests(),
        names::tests(),
        edges::tests(),
        inherited::tests(),
        lives::tests(),
        connects::tests(),
        destinations::tests(),
        sends::tests(),
        crowds::tests(),
        obstacles::tests(),
        rings::tests(),
    ];
    let is_ours = |test: &Test| !NOTIFYS.iter().any(|name| test.name().contains(name));
    let mut all: Vec<Test> = shared.into_iter().flatten().filter(is_ours).collect();
    all.extend(beside::tests());
    all.extend(connect::tests());
    all.extend(copies::tests());
    all.extend(descriptors::tests());
    all.extend(dropin::tests());
    all.extend(filters::tests());
    all.extend(holds::tests());
    all.extend(install::tests());
    all.extend(library::tests());
    all.extend(mail::tests());
    all.extend(without_library::tests());
    truepeer_testbed::main(all)
}

/// A listener of the test. Another test may be starting a program, which has a copy of the previous listener
/// until it executes.
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
