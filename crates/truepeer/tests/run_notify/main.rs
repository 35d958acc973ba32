//! `truepeer run` by notification: real programs, and tests of this mechanism alone. Behaviours of every way
//! are in `matrix`.

mod answers;
mod askers;
mod bodies;
mod connects;
mod crowds;
mod edges;
mod flows;
mod kit;
mod lives;
mod obstacles;
mod pollers;
mod programs;
mod rings;
mod sends;
mod service_manager;
mod sockets;
mod statics;

use std::process::ExitCode;

fn main() -> ExitCode {
    kit::choose("notify");
    let mut all = programs::tests();
    all.extend(sockets::tests());
    all.extend(edges::tests());
    all.extend(lives::tests());
    all.extend(connects::tests());
    all.extend(sends::tests());
    // With notify, a sending call reports it.
    all.extend(answers::tests().into_iter().filter(|test| !test.name().contains("by_a_receiving_call")));
    all.extend(statics::tests());
    all.extend(service_manager::tests());
    all.extend(flows::tests());
    all.extend(askers::tests());
    all.extend(crowds::tests());
    all.extend(obstacles::tests());
    all.extend(pollers::tests());
    all.extend(rings::tests());
    truepeer_testbed::main(all)
}
